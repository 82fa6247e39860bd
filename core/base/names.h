#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kvlab {

/// The candidate that is most likely meant by `word` (edit distance, case ignored); empty where
/// none is near.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

/// " (did you mean 'x'?)", or nothing where no candidate is near.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates);

/// "a, b, c".
std::string join(const std::vector<std::string>& words, std::string_view separator = ", ");

}  // namespace kvlab
