#pragma once

#include <set>

#include "cache/schedule.h"
#include "calibrate/prepare.h"
#include "metrics/context.h"
#include "metrics/measured.h"

namespace kvlab::metrics {

/// What one cell measured.
struct Measured {
  Arrays metrics;
  // Squared errors and norms by token: k_se, v_se, k_norm, v_norm [B, Hkv, T]; by channel and block
  // of 32 tokens from s0 on, the last one shorter: k_se_channels, v_se_channels [B, Hkv, blocks,
  // d]; by probe: position [P], out_se, out_ss [B, Hq, P].
  Arrays tokens;
  // What intervals resample: sums over blocks of positions by metric (blocks.h), [H, blocks, 2];
  // metrics by head and probe or token alone have them.
  Arrays blocks;
  Arrays samples;  // raw timings behind a metric, nanoseconds: encode_us, decode_us [runs]
  std::vector<std::string> notes;  // what a reader of the row should know
  int64_t hist_key[2] = {0, 0};    // [begin, end) read quantized at the last step; where sequences
                                   // differ, of the shortest one
  int64_t hist_value[2] = {0, 0};
};

/// Encodes, decodes and attends on a backend, head by head (never all heads at once, to keep memory
/// low), and measures what `measure` names, the words of measures(). Throws Unsupported where the
/// backend lacks the combination.
Measured evaluate(const SampleContext& context, const calibrate::Prepared& method,
                  const method::Recipe& recipe, const std::set<std::string>& measure,
                  const std::string& backend);

}  // namespace kvlab::metrics
