#pragma once

#include <functional>
#include <string>
#include <vector>

/// The GPU's kernels against the CPU's on equal inputs.
namespace kvlab::gpu_check {

/// One case: returns what is wrong, one sentence each, and may add to `note` what is worth a look
/// though right.
struct Case {
  std::string name;
  std::function<std::vector<std::string>(std::string& note)> run;
};

/// All cases; `small` leaves out those of more than 513 tokens, for compute-sanitizer.
std::vector<Case> all_cases(bool small);

}  // namespace kvlab::gpu_check
