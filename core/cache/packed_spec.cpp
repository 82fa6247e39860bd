#include "cache/packed_spec.h"

#include "cache/packed_format.h"

namespace kvlab::cache {
namespace {

at::Tensor single(const at::Tensor& x) { return x.to(at::kFloat).contiguous(); }

/// The spec of a cache that holds KV head `head` alone.
kernels::SideEncode of_head(kernels::SideEncode side, int64_t head, int64_t d) {
  if (side.rotation.per_head) side.rotation.matrix += head * d * d;
  side.rotation.per_head = false;
  if (side.center != nullptr) side.center += head * d;
  if (side.thresholds != nullptr) side.thresholds += head;
  return side;
}

}  // namespace

PackedSpec::Side PackedSpec::side_of(const Engine& engine, const Settings& settings,
                                     const calibrate::PreparedSide& prepared, int64_t head_dim) {
  Side side;
  side.encode = side_encode(settings, head_dim);
  const auto place = [&](const at::Tensor& x, Memory& memory) {
    memory = engine.place(single(x));
    return static_cast<const float*>(memory.get());
  };
  const at::Tensor& rotation = prepared.transform.rotation();
  // Blocks of a head are a matrix like any other.
  if (get_text(settings, "rotate") == "hadamard" && get_int(settings, "rotate_block") == 0) {
    side.encode.rotation.kind = kernels::Rotation::Kind::hadamard;
  } else if (rotation.defined()) {
    side.encode.rotation.kind = kernels::Rotation::Kind::dense;
    side.encode.rotation.per_head = rotation.size(0) > 1;
    side.encode.rotation.matrix = place(rotation, side.rotation);
  }
  const at::Tensor& center = prepared.transform.center();
  if (center.defined()) side.encode.center = place(center, side.center);
  if (prepared.shared.defined()) side.encode.thresholds = place(prepared.shared, side.thresholds);
  return side;
}

PackedSpec::PackedSpec(const Engine& engine, const method::Recipe& recipe,
                       const calibrate::Prepared& prepared, int64_t head_dim)
    : head_dim_(head_dim) {
  if (prepared.key.passthrough) return;
  key_ = side_of(engine, recipe.side("key"), prepared.key, head_dim);
  value_ = side_of(engine, recipe.side("value"), prepared.value, head_dim);
  const at::Tensor& center = prepared.key.transform.center();
  if (center.defined()) center_bytes_ = center.numel() * 4;
}

kernels::EncodeSpec PackedSpec::encode(int64_t head) const {
  return {of_head(key_.encode, head, head_dim_), of_head(value_.encode, head, head_dim_)};
}

void PackedSpec::fill(kernels::AttendArgs& args, const kernels::EncodeSpec& spec) {
  args.key_rotation = spec.key.rotation;
  args.value_rotation = spec.value.rotation;
  args.key_center = spec.key.center;
}

}  // namespace kvlab::cache
