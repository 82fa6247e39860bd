#pragma once

#include <string>
#include <vector>

#include "config/plan.h"

/// Whether a calibration set fits what it is used for (contract section 4.4).
namespace kvlab::config {

/// A dataset item with what is known of it.
struct Described {
  const DatasetItem& item;
  const DatasetInfo& info;
};

/// "capture datasets/x.h5" or "synthetic low_norm_sink", for messages.
std::string name_of(const DatasetItem& item);

/// Reasons why the calibration cannot be used on this layer of the evaluated data: other heads or
/// head size, a missing layer, fewer query rows than channels.
std::vector<std::string> calibration_errors(const Described& calibration,
                                            const Described& evaluated, int64_t layer);

/// What every row that uses the calibration must say: few query rows, a short sequence, queries
/// left out.
std::vector<std::string> calibration_warnings(const Described& calibration,
                                              const Described& evaluated);

/// Whether the calibration holds text of the evaluation at this seed: equal content, a run of 64
/// equal tokens, or the same passage of a synthetic model. "yes", "no", or "unknown" where a
/// capture names no tokens.
std::string overlap(const Described& calibration, const Described& evaluated, int64_t seed);

}  // namespace kvlab::config
