#pragma once

#include "attend_params.h"

/// The tuned instances of the attention kernel: one table. A format that is not in it runs on the
/// run-time kernel. An instance that wins less than 3% over another way of doing the same does not
/// belong here.
namespace kvlab::kernels::cuda {

inline constexpr int kTunedWarps = 8;                // at most, of a block
inline constexpr int kStages = 2;                    // records that are on their way to a warp
inline constexpr int kMostSharedBytes = 220 * 1024;  // dynamic, of a block

/// Rows of queries, and of a warp's output, in shared memory are so many floats apart that lanes
/// that read different rows, and those of a fragment that write, meet no bank conflict.
constexpr int row_stride(int dim) { return dim + 4; }
constexpr int output_stride(int dim) { return dim + 8; }

/// A format and the number of query rows that share a pass over it: 4 (with 8-bit products where
/// keys are per token and of 2 bits), 8 or 16.
struct Instance {
  Format format;
  int rows = 8;
};

/// Per-token keys and values, groups of `group` channels.
constexpr Format token_format(int dim, int group, int bits, Zero zero) {
  Format f;
  f.dim = dim;
  f.key.group = f.value.group = group;
  f.key.bits = f.value.bits = bits;
  f.key.zero = f.value.zero = zero;
  return f;
}

/// Per-channel keys, per-token values, both with groups of `group`.
constexpr Format channel_format(int dim, int group, int bits, Zero zero, Norm norm = Norm::none,
                                Type norm_type = Type::f16) {
  Format f = token_format(dim, group, bits, zero);
  f.key.axis = Axis::channel;
  f.norm = norm;
  f.norm_type = norm_type;
  return f;
}

inline constexpr Instance kInstances[] = {
    // F1: groups of 128, or of all channels of a smaller head.
    {token_format(64, 64, 2, Zero::value), 4},
    {token_format(64, 64, 2, Zero::value), 8},
    {token_format(64, 64, 2, Zero::value), 16},
    {token_format(128, 128, 2, Zero::value), 4},
    {token_format(128, 128, 2, Zero::value), 8},
    {token_format(128, 128, 2, Zero::value), 16},
    {token_format(256, 128, 2, Zero::value), 4},
    {token_format(256, 128, 2, Zero::value), 8},
    // QuaRot's rounded zero.
    {token_format(64, 64, 2, Zero::offset), 4},
    {token_format(128, 128, 2, Zero::offset), 4},
    // Smaller groups and more bits.
    {token_format(128, 64, 2, Zero::value), 4},
    {token_format(128, 32, 2, Zero::value), 4},
    {token_format(128, 128, 4, Zero::value), 4},
    // KIVI.
    {channel_format(128, 32, 2, Zero::value), 4},
    {channel_format(64, 32, 2, Zero::value), 8},
    {channel_format(128, 32, 2, Zero::value), 8},
    {channel_format(128, 32, 2, Zero::value), 16},
    {channel_format(128, 64, 2, Zero::value), 4},
    {channel_format(128, 32, 4, Zero::value), 4},
    // F2.
    {channel_format(64, 32, 2, Zero::value, Norm::head), 4},
    {channel_format(128, 32, 2, Zero::value, Norm::head), 4},
    {channel_format(256, 32, 2, Zero::value, Norm::head), 4},
    {channel_format(64, 32, 2, Zero::value, Norm::head), 8},
    {channel_format(128, 32, 2, Zero::value, Norm::head), 8},
    {channel_format(128, 32, 2, Zero::value, Norm::head), 16},
    {channel_format(256, 32, 2, Zero::value, Norm::head), 8},
    // OScaR and its parts.
    {channel_format(64, 32, 2, Zero::offset), 8},
    {channel_format(128, 32, 2, Zero::offset), 8},
    {channel_format(64, 32, 2, Zero::offset, Norm::head, Type::f32), 4},
    {channel_format(128, 32, 2, Zero::offset, Norm::head, Type::f32), 4},
    {channel_format(128, 32, 2, Zero::offset, Norm::head, Type::f32), 8},
};
inline constexpr int kInstanceCount = static_cast<int>(sizeof kInstances / sizeof kInstances[0]);
static_assert(kInstanceCount <= 48);

/// Whether the instance has a kernel for sequences of unlike lengths too (attend_schedule.h). The
/// widest have none: the bundle has no room for all, and few models have so many heads a KV head.
constexpr bool has_schedule(const Instance& instance) { return instance.rows <= 8; }

/// Shared memory of a block: each warp's records, queries as they came and rotated, and each warp's
/// output of the tokens in 16 bits, if there are any.
constexpr int shared_bytes(const Instance& instance, int warps, bool window) {
  const int dim = instance.format.dim;
  const int queries = 2 * instance.rows * row_stride(dim) * 4;
  const int outputs = window ? warps * instance.rows * output_stride(dim) * 4 : 0;
  return warps * kStages * layout_of(instance.format).bytes + queries + outputs;
}

/// Runs an instance. `warps` of a block.
using Launch = void (*)(const AttendParams& params, int warps, Stream stream);

/// The instance's code, from the file that compiles it; null where it is another file's.
Launch launch_d64(int instance);
Launch launch_d128_token(int instance);
Launch launch_d128_channel(int instance);
Launch launch_d256(int instance);

}  // namespace kvlab::kernels::cuda
