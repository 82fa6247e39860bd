#pragma once

#include "calibrate/learn.h"
#include "data/sample.h"

namespace kvlab::calibrate {

/// Cuts the first settings.tokens tokens of a calibration sample into sequences to learn from and
/// held-out ones, in float32; RoPE positions are kept. Throws Unsupported where the sample lacks
/// queries or is too short.
LearnInput cut_sequences(const data::Sample& sample, const LearnSettings& settings);

}  // namespace kvlab::calibrate
