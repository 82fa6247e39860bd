#pragma once

/// What is registered where there is a GPU.
namespace kvlab::bench {

void register_cuda_decode();  // the shapes of the README's table, and variants of them
void register_cuda_shapes();  // decode of other shapes and formats, sweeps
void register_cuda_encode();  // encode and dequantize
void register_cuda_append();

}  // namespace kvlab::bench
