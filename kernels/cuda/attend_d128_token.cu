#include "attend_instances.cuh"

namespace kvlab::kernels::cuda {
namespace {

struct Mine {
  static constexpr bool mine(const Format& f) { return f.dim == 128 && f.key.axis == Axis::token; }
};

}  // namespace

Launch launch_d128_token(int instance) { return launch_of(instance, Mine{}); }

}  // namespace kvlab::kernels::cuda
