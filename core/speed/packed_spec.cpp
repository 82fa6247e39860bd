#include "speed/packed_spec.h"

namespace kvlab::speed {
namespace {

using namespace kernels;

Grid grid_of(const SideFormat& side) {
  Grid grid;
  grid.bits = side.bits;
  grid.zero = side.zero;
  grid.params = side.params;
  return grid;
}

TokenScale scale_of(Norm norm) {
  return norm == Norm::heads  ? TokenScale::l2_heads
         : norm == Norm::head ? TokenScale::l2_head
                              : TokenScale::none;
}

}  // namespace

EncodeSpec spec_of(const Format& format, Rotation::Kind rotation) {
  EncodeSpec spec;
  spec.key.grid = grid_of(format.key);
  spec.value.grid = grid_of(format.value);
  spec.key.rotation.kind = spec.value.rotation.kind = rotation;
  spec.key.scale = scale_of(format.norm);
  return spec;
}

int window_group(const Format& format) {
  return format.key.axis == Axis::channel ? format.key.group : 1;
}

}  // namespace kvlab::speed
