#include "base/error.h"

#include <fmt/format.h>

namespace kvlab {
namespace {

std::string join(const std::vector<Problem>& problems) {
  std::string text;
  for (const Problem& problem : problems) {
    if (!text.empty()) text += '\n';
    text += problem.text();
  }
  return text;
}

}  // namespace

std::string Problem::text() const {
  std::string place = file;
  if (line > 0) place += fmt::format(":{}:{}", line, column);
  return place.empty() ? message : place + ": " + message;
}

ConfigError::ConfigError(std::vector<Problem> problems)
    : Error(join(problems)), problems_(std::move(problems)) {}

}  // namespace kvlab
