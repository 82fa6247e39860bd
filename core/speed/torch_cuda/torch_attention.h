#pragma once

/// libtorch's attention on the GPU behind a C interface, in a library of its own that is loaded
/// where it is wanted: kvlab_bench starts without libtorch's CUDA half.
extern "C" {

/// bf16 attention of one query token a sequence over unpacked tokens. kind: "torch_cudnn" or
/// "torch_flash". sizes: batch, tokens, query heads, KV heads, head dimension. `copies` sets of
/// tokens are used in turn by the `launches` launches of a CUDA graph; nanoseconds gets the mean of
/// a launch for each of `samples` samples. The first call checks the output against plain float32
/// arithmetic. 0, or another number where it failed.
int kvlab_torch_time(const char* kind, const int* sizes, int copies, int launches, int samples,
                     double* nanoseconds);

/// What was wrong, in a sentence; valid until the next call.
const char* kvlab_torch_error();
}
