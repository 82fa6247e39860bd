#include "base/names.h"

#include <algorithm>
#include <cctype>

namespace kvlab {
namespace {

std::string lower(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return result;
}

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t above = row[j];
      row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row.back();
}

/// What programs call the types of numbers: one type a line. By letters bfloat16 is nearer to
/// float32 than to bf16.
const std::vector<std::vector<std::string>>& type_names() {
  static const std::vector<std::vector<std::string>> names = {
      {"bf16", "bfloat16"}, {"fp16", "float16", "half"}, {"fp32", "float32", "float"}};
  return names;
}

/// The candidate that names the same type as the word; empty where there is none.
std::string same_type(const std::string& word, const std::vector<std::string>& candidates) {
  const auto holds = [](const std::vector<std::string>& words, const std::string& one) {
    return std::find(words.begin(), words.end(), one) != words.end();
  };
  for (const std::vector<std::string>& names : type_names()) {
    if (!holds(names, word)) continue;
    for (const std::string& candidate : candidates) {
      if (holds(names, lower(candidate))) return candidate;
    }
  }
  return "";
}

}  // namespace

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
  const std::string wanted = lower(word);
  if (std::string same = same_type(wanted, candidates); !same.empty()) return same;
  std::string best;
  size_t best_distance = std::max<size_t>(2, wanted.size() / 2) + 1;
  for (const std::string& candidate : candidates) {
    const size_t distance = edit_distance(wanted, lower(candidate));
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates) {
  const std::string near = nearest(word, candidates);
  return near.empty() ? "" : " (did you mean '" + near + "'?)";
}

std::string counted(int64_t count, std::string_view noun) {
  return std::to_string(count) + " " + std::string(noun) + (count == 1 ? "" : "s");
}

bool has_control(std::string_view text) {
  return std::any_of(text.begin(), text.end(),
                     [](unsigned char c) { return (c != '\0' && c < ' ') || c == 0x7F; });
}

void add_once(std::vector<std::string>* words, const std::string& word) {
  if (std::find(words->begin(), words->end(), word) == words->end()) words->push_back(word);
}

std::string listed(const std::vector<std::string>& words) {
  std::vector<std::string> shown;
  for (const std::string& word : words) {
    const bool has_comma = word.find(',') != std::string::npos;
    shown.push_back(has_comma ? "'" + word + "'" : word);
  }
  return join(shown);
}

std::string few(const std::vector<std::string>& words) {
  constexpr size_t kShown = 6;
  if (words.size() <= kShown) return listed(words);
  return listed({words.begin(), words.begin() + kShown}) + " and " +
         std::to_string(words.size() - kShown) + " more";
}

std::string join(const std::vector<std::string>& words, std::string_view separator) {
  std::string text;
  for (size_t i = 0; i < words.size(); ++i) {
    if (i > 0) text += separator;
    text += words[i];
  }
  return text;
}

}  // namespace kvlab
