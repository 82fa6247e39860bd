#include "base/error.h"

#include <fmt/format.h>

namespace kvlab {
namespace {

std::string join(const std::vector<Problem>& problems) {
  std::string text;
  for (const Problem& problem : problems) {
    if (!text.empty()) text += '\n';
    if (!problem.file.empty()) text += problem.file + ":";
    if (problem.line > 0) text += fmt::format("{}:{}:", problem.line, problem.column);
    if (!text.empty() && text.back() == ':') text += ' ';
    text += problem.message;
  }
  return text;
}

}  // namespace

ConfigError::ConfigError(std::vector<Problem> problems)
    : Error(join(problems)), problems_(std::move(problems)) {}

}  // namespace kvlab
