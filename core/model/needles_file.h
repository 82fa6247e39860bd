#pragma once

#include <ATen/ATen.h>

#include <filesystem>
#include <string>

namespace kvlab::model {

/// The trials of one task of a kvlab.needles/1 file: prompts that ask for a fact hidden in them,
/// and the right answers.
struct Needles {
  at::Tensor prompts;  // int64 [trials, length]
  at::Tensor answers;  // int64 [trials, m]
};

/// Throws Error in one sentence where the file is missing or not of that form.
Needles read_needles(const std::filesystem::path& path, const std::string& task);

}  // namespace kvlab::model
