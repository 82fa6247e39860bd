#pragma once

#include <stdexcept>
#include <string>
#include <vector>

namespace kvlab {

/// A wrong command, file or input: one sentence that names the place, what was expected and what
/// was found. The command line prints it and ends with exit code 2. The library never prints and
/// never exits.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A combination that a method, codec or backend cannot take. In a run it is a row with status
/// `unsupported`.
class Unsupported : public Error {
 public:
  using Error::Error;
};

/// One mistake in a file the user wrote. line and column count from 1; 0 where there is none.
struct Problem {
  std::string file;
  int line = 0;
  int column = 0;
  std::string message;

  std::string text() const;  // "file:line:column: message"
};

/// All mistakes of an experiment or method file at once; what() is one "file:line:column: message"
/// a line.
class ConfigError : public Error {
 public:
  explicit ConfigError(std::vector<Problem> problems);
  const std::vector<Problem>& problems() const { return problems_; }

 private:
  std::vector<Problem> problems_;
};

}  // namespace kvlab
