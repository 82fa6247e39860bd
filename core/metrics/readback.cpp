#include "metrics/readback.h"

namespace kvlab::metrics {

SideBytes captured_bytes(const calibrate::PreparedSide& side, at::IntArrayRef sizes, DType dtype) {
  SideBytes bytes;
  bytes.quantized = !side.passthrough;
  bytes.sequences = sizes[0];
  bytes.token_elements = sizes[0] * sizes[1] * sizes[3];
  bytes.captured_row = bytes.token_elements * size_of(dtype);
  if (side.passthrough) return bytes;
  if (side.transform.center().defined()) bytes.center = sizes[1] * sizes[3] * 4;
  bytes.rotation = side.shared_bytes;
  return bytes;
}

std::unique_ptr<Readback> make_readback(const std::string& backend, const SampleContext& context,
                                        const calibrate::Prepared& method,
                                        const method::Recipe& recipe,
                                        const cache::Schedule& schedule) {
  if (backend == "reference") return make_reference_readback(context, method, recipe, schedule);
  return make_packed_readback(backend, context, method, recipe, schedule);
}

}  // namespace kvlab::metrics
