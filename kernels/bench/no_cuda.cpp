// register_cuda in a build without a CUDA toolkit.
#include <cstdio>
#include <string>

#include "kvlab/kernels/cuda.h"

namespace kvlab::bench {

void register_cuda() {
  std::string why;
  kernels::cuda::available(&why);
  std::fprintf(stderr, "kvlab_bench: no cuda cases: %s\n", why.c_str());
}

}  // namespace kvlab::bench
