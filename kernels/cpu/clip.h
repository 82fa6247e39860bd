#pragma once

#include <cstdint>

#include "cpu/row_ops.h"
#include "kvlab/kernels/float_bits.h"

/// Clipping before quantization (contract section 4.2).
namespace kvlab::kernels::cpu {

inline float limited(float x, float threshold) {
  return x > threshold ? threshold : x < -threshold ? -threshold : x;
}

/// Limits n numbers at a stride to ascending |x| at `index`, exactly. Magnitudes are compared by
/// their bits, which puts NaN last.
inline void clip_run(const RowOps& ops, float* x, int n, int stride, int index) {
  std::uint32_t sizes[256];
  for (int i = 0; i < n; ++i) sizes[i] = bits_of(x[i * stride]) & 0x7fffffffu;
  const float threshold = float_of(ops.select(sizes, n, index));
  for (int i = 0; i < n; ++i) x[i * stride] = limited(x[i * stride], threshold);
}

/// Clips rows [count, dim] of a KV head; on Axis::channel they are one group.
inline void clip(const RowOps& ops, const SideEncode& side, const SideFormat& format, int head,
                 float* rows, int count, int dim) {
  switch (side.clip) {
    case Clip::none:
      return;
    case Clip::calibrated:
      for (int i = 0; i < count * dim; ++i) rows[i] = limited(rows[i], side.thresholds[head]);
      return;
    case Clip::row:
      for (int row = 0; row < count; ++row)
        clip_run(ops, rows + row * dim, dim, 1, side.clip_index);
      return;
    case Clip::group:
      if (format.axis == Axis::channel) {
        for (int c = 0; c < dim; ++c) clip_run(ops, rows + c, count, dim, side.clip_index);
      } else {
        for (int i = 0; i < count * dim; i += format.group) {
          clip_run(ops, rows + i, format.group, 1, side.clip_index);
        }
      }
      return;
  }
}

}  // namespace kvlab::kernels::cpu
