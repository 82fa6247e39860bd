#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "config/experiment.h"

/// The least that an experiment says.
inline const std::string kSmall = R"(schema: 1
dataset: {source: synthetic, pattern: gaussian, tokens: 256}
methods: [bf16, kivi]
)";

/// A folder of its own for one test, removed at its end.
class ExperimentFolder {
 public:
  ExperimentFolder();
  ~ExperimentFolder();
  ExperimentFolder(const ExperimentFolder&) = delete;
  ExperimentFolder& operator=(const ExperimentFolder&) = delete;

  std::filesystem::path write(const std::string& name, const std::string& text) const;
  const std::filesystem::path& path() const { return path_; }

  /// Reads the text as `e.yaml` of this folder.
  kvlab::config::Experiment load(const std::string& text,
                                 const std::vector<std::string>& edits = {}) const;

  /// The mistakes of the text, the folder's own path taken off: "e.yaml:3:1: message".
  std::vector<std::string> mistakes(const std::string& text,
                                    const std::vector<std::string>& edits = {}) const;

 private:
  std::filesystem::path path_;
};
