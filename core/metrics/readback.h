#pragma once

#include <memory>
#include <string>

#include "cache/schedule.h"
#include "calibrate/prepare.h"
#include "metrics/attention.h"
#include "metrics/context.h"
#include "metrics/memory.h"

namespace kvlab::metrics {

using WhichSide = cache::Schedule::Side;

/// The span of one side of one head of one sequence, as a backend reads it back.
struct Decoded {
  at::Tensor values;       // [n, d] in captured space, float64 or float32; undefined: passthrough
  at::Tensor codec_norms;  // float64 [n]: L2 norms of what entered the codec
  int64_t saturated = 0;   // elements
};

/// What a backend makes of a sample: metrics are computed from this, whatever the backend. Asked
/// head by head, so that memory stays low.
class Readback {
 public:
  virtual ~Readback() = default;

  /// Encodes and decodes one head of one sequence.
  virtual Decoded decode(WhichSide side, int64_t sequence, int64_t head) = 0;

  /// Adds what attention through the cache does to the probes of all query heads of a KV head.
  /// key, value: as decode returned them for this head.
  virtual void attend(int64_t sequence, int64_t head, const Decoded& key, const Decoded& value,
                      AttentionErrors& errors) = 0;

  /// Sizes of the rows of the buffers that encoding leaves.
  virtual SideBytes bytes(WhichSide side) = 0;

  /// Bytes that a cache of `tokens` tokens holds beside its rows.
  virtual int64_t padding(int64_t tokens) const = 0;
};

/// backend: "reference", or a packed one. Throws Unsupported where that cannot hold the recipe,
/// the sample's query heads or its NaN and infinite values.
std::unique_ptr<Readback> make_readback(const std::string& backend, const SampleContext& context,
                                        const calibrate::Prepared& method,
                                        const method::Recipe& recipe,
                                        const cache::Schedule& schedule);

std::unique_ptr<Readback> make_reference_readback(const SampleContext& context,
                                                  const calibrate::Prepared& method,
                                                  const method::Recipe& recipe,
                                                  const cache::Schedule& schedule);

std::unique_ptr<Readback> make_packed_readback(const std::string& backend,
                                               const SampleContext& context,
                                               const calibrate::Prepared& method,
                                               const method::Recipe& recipe,
                                               const cache::Schedule& schedule);

/// Rows of a side's buffers that are the same on every backend: sizes of the captured tokens, the
/// centre and the rotation. sizes: those of the captured tensor, [B, Hkv, T, d].
SideBytes captured_bytes(const calibrate::PreparedSide& side, at::IntArrayRef sizes, DType dtype);

}  // namespace kvlab::metrics
