#pragma once

/// What is registered where there is a GPU.
namespace kvlab::bench {

void register_cuda_decode();
void register_cuda_encode();  // encode and dequantize
void register_cuda_append();

}  // namespace kvlab::bench
