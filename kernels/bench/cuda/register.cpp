#include <cstdio>
#include <string>

#include "cases.h"
#include "kvlab/kernels/cuda.h"

namespace kvlab::bench {

void register_cuda() {
  std::string why;
  if (!kernels::cuda::available(&why)) {
    std::fprintf(stderr, "kvlab_bench: no cuda cases: %s\n", why.c_str());
    return;
  }
  register_cuda_decode();
  register_cuda_encode();
  register_cuda_append();
  register_cuda_shapes();
}

}  // namespace kvlab::bench
