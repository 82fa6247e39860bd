#pragma once

#include <string>

namespace kvlab::store {

/// The first place where two resolved experiments (YAML) differ, `output` apart, as "window.recent
/// is 128 in A and 64 in B"; empty where they are equal, in whatever order their keys stand.
std::string experiment_difference(const std::string& a, const std::string& b,
                                  const std::string& name_a, const std::string& name_b);

}  // namespace kvlab::store
