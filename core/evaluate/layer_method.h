#pragma once

#include <string>
#include <vector>

#include "base/dtype.h"
#include "calibrate/prepare.h"
#include "metrics/memory.h"
#include "metrics/readback.h"
#include "model/decoder.h"

namespace kvlab::evaluate {

/// A method made ready for one layer of a model.
struct LayerMethod {
  method::Recipe recipe;
  calibrate::Prepared prepared;
};

/// One entry a layer.
using LayerMethods = std::vector<LayerMethod>;

/// A method made ready for every layer of a model, with seed 0. samples: one a layer, or none for a
/// recipe that needs no calibration. Throws Error where it does.
LayerMethods on_all_layers(const method::Recipe& recipe, const model::Config& model,
                           const std::vector<calibrate::CalibrationSample>& samples = {});

/// How a model is run with a cache (contract section 7).
struct CacheUse {
  DType dtype = DType::bf16;          // keys and values are rounded to it after RoPE
  std::string backend = "reference";  // who quantizes and, in decoding, attends
};

/// What a layer's cache gives back of all complete groups of its tokens, float32 [Hkv, n, d] from
/// token `begin` on; undefined for a side that is not quantized.
struct ReadTokens {
  at::Tensor k, v;
  int64_t begin = 0;
  metrics::Arrays memory;  // bits and bytes of a cache of these tokens
};

/// schedule: of this sample.
ReadTokens read_back(const data::Sample& sample, const LayerMethod& method,
                     const std::string& backend, const cache::Schedule& schedule);

/// Means of bits and sums of bytes over the layers of a model.
metrics::Arrays over_layers(const std::vector<metrics::Arrays>& layers);

}  // namespace kvlab::evaluate
