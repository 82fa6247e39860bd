#pragma once

#include "cache/engine.h"
#include "calibrate/prepare.h"
#include "method/recipe.h"

namespace kvlab::cache {

/// A prepared method as kernels take it: its tensors in float32 where an engine's kernels see them,
/// and the structs that point to them.
class PackedSpec {
 public:
  /// The recipe must be one that packed_format takes.
  PackedSpec(const Engine& engine, const method::Recipe& recipe,
             const calibrate::Prepared& prepared, int64_t head_dim);

  /// For a cache of all KV heads, or of `head` alone.
  kernels::EncodeSpec encode() const { return {key_.encode, value_.encode}; }
  kernels::EncodeSpec encode(int64_t head) const;

  /// The transforms that attention applies.
  void fill(kernels::AttendArgs& args) const { fill(args, encode()); }
  void fill(kernels::AttendArgs& args, int64_t head) const { fill(args, encode(head)); }

  /// Bytes of the keys' centre, [Hkv, d] float32.
  int64_t center_bytes() const { return center_bytes_; }

 private:
  struct Side {
    kernels::SideEncode encode;
    Memory rotation, center, thresholds;
  };

  static Side side_of(const Engine& engine, const Settings& settings,
                      const calibrate::PreparedSide& prepared, int64_t head_dim);
  static void fill(kernels::AttendArgs& args, const kernels::EncodeSpec& spec);

  Side key_, value_;
  int64_t head_dim_ = 0;
  int64_t center_bytes_ = 0;
};

}  // namespace kvlab::cache
