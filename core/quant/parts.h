#pragma once

#include <initializer_list>
#include <vector>

#include "base/part.h"

namespace kvlab::quant {

/// Every kind of codec that `codec.kind` may name, with its parameters. See CONTRIBUTING.md, "Add a
/// codec".
const std::vector<Part>& codec_parts();

/// Whether a codec keeps its side as captured: no transform, no history.
bool is_passthrough(const Settings& codec);

/// Whether a row is a token's of all KV heads, so that the codec takes all heads at once.
bool spans_heads(const Settings& codec);

/// The named parameters of the uniform codec, for codecs that share them.
std::vector<Param> params_like_uniform(std::initializer_list<const char*> keys);

/// The parameters of the uniform codec that only the reference has: quiet ones (part.h).
std::vector<Param> uniform_switches();

/// Whether this codec has the parameter, and it means something beside the others.
bool has_param(const Settings& codec, const std::string& key);

/// Tokens that must be quantized together: the group of uniform codecs on `axis: channel` (the page
/// of boosted ones), else 1.
int64_t token_group(const Settings& codec);

/// The group as used at this head size: a per-token group larger than the head is the head.
int64_t effective_group(const Settings& codec, int64_t head_dim);

/// Whether the codec needs a codebook that is learned on calibration values, and whether learning
/// it takes weights of the values.
bool learns_codebook(const Settings& codec);
bool weighs_values(const Settings& codec);

/// The clip ratio where clipping is on, nothing where it is off (`none`, 0 and 1 or more).
std::optional<double> clip_ratio(const Settings& codec);

/// True where thresholds come from the calibration sample.
bool clip_is_calibrated(const Settings& codec);

}  // namespace kvlab::quant
