#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvlab {

/// The candidate that is most likely meant by `word` (edit distance, case ignored); empty where
/// none is near.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

/// " (did you mean 'x'?)", or nothing where no candidate is near.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates);

/// The candidates by edit distance from `word` (case ignored), nearest first.
std::vector<std::string> by_distance(std::string_view word, std::vector<std::string> candidates);

/// "1 row", "2 rows": a number of things whose plural ends in s.
std::string counted(int64_t count, std::string_view noun);

/// Appends a word that is not there yet.
void add_once(std::vector<std::string>* words, const std::string& word);

/// "a, b, c".
std::string join(const std::vector<std::string>& words, std::string_view separator = ", ");

}  // namespace kvlab
