#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvlab {

/// The candidate that is most likely meant by `word` (another name of the same type of numbers,
/// else by edit distance, case ignored); empty where none is near.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

/// " (did you mean 'x'?)", or nothing where no candidate is near.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates);

/// "1 row", "2 rows": a number of things whose plural ends in s.
std::string counted(int64_t count, std::string_view noun);

/// Whether a text holds a character below the space (NUL apart, which no YAML text has) or DEL.
bool has_control(std::string_view text);

/// Appends a word that is not there yet.
void add_once(std::vector<std::string>* words, const std::string& word);

/// "a, b, 'c, d'": words that hold a comma in quotes.
std::string listed(const std::vector<std::string>& words);

/// The first few words and how many more there are: "a, b, 'c, d' and 4 more".
std::string few(const std::vector<std::string>& words);

/// "a, b, c".
std::string join(const std::vector<std::string>& words, std::string_view separator = ", ");

}  // namespace kvlab
