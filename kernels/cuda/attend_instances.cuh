#pragma once

#include <utility>

#include "attend_kernel.cuh"

namespace kvlab::kernels::cuda {

/// The code of `instance` if it is one of IsMine::mine(format): compiles those instances of the
/// table and no others.
template <typename IsMine>
Launch launch_of(int instance, IsMine) {
  Launch found = nullptr;
  const auto consider = [&]<int kIndex>(std::integral_constant<int, kIndex>) {
    if constexpr (IsMine::mine(kInstances[kIndex].format)) {
      if (kIndex == instance) found = &launch_tuned<kIndex>;
    }
  };
  [&]<int... kIndices>(std::integer_sequence<int, kIndices...>) {
    (consider(std::integral_constant<int, kIndices>{}), ...);
  }(std::make_integer_sequence<int, kInstanceCount>{});
  return found;
}

}  // namespace kvlab::kernels::cuda
