#pragma once

#include "attend_params.h"

namespace kvlab::kernels::cuda {

inline constexpr int kRuntimeRows = 4;  // rows of a tile
inline constexpr int kRuntimeWarps = 8;

void launch_runtime(const AttendParams& params, Stream stream);

}  // namespace kvlab::kernels::cuda
