#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "data/capture_info.h"
#include "data/probes.h"
#include "data/sample.h"

namespace kvlab::data {

/// Reads one layer of a kvlab.capture/1 file, tensors in their stored type and W_O as float32.
/// Memory beyond the result stays below one slice of 64 MiB.
///
/// Queries are those at the asked probe positions; where the file lacks one of them, all that it
/// holds, with a warning (contract section 1). Of a stretch, tokens and positions are counted
/// within it; what begins behind the first token has no keys before RoPE. NaN and Inf are refused
/// by count, dataset and first index, or with `allow_nonfinite` become a warning. Warnings are
/// appended. Throws Error as describe_capture does, and where there is no such layer.
Sample load_capture(const std::filesystem::path& path, int64_t layer, const ProbeChoice& probes,
                    bool allow_nonfinite, std::vector<std::string>* warnings,
                    const Stretch& stretch = {});

}  // namespace kvlab::data
