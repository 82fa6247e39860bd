#include "config/experiment_file.h"

#include <unistd.h>

#include <atomic>
#include <fstream>
#include <sstream>

#include "base/error.h"

namespace fs = std::filesystem;

ExperimentFolder::ExperimentFolder() {
  static std::atomic<int> count = 0;
  path_ = fs::temp_directory_path() /
          ("kvlab_config_" + std::to_string(getpid()) + "_" + std::to_string(count++));
  fs::create_directories(path_);
}

ExperimentFolder::~ExperimentFolder() { fs::remove_all(path_); }

fs::path ExperimentFolder::write(const std::string& name, const std::string& text) const {
  const fs::path file = path_ / name;
  fs::create_directories(file.parent_path());
  std::ofstream(file) << text;
  return file;
}

kvlab::config::Experiment ExperimentFolder::load(const std::string& text,
                                                 const std::vector<std::string>& edits) const {
  return kvlab::config::load(write("e.yaml", text), edits);
}

std::vector<std::string> ExperimentFolder::mistakes(const std::string& text,
                                                    const std::vector<std::string>& edits) const {
  std::vector<std::string> lines;
  try {
    load(text, edits);
  } catch (const kvlab::ConfigError& error) {
    std::istringstream all(error.what());
    const std::string folder = path_.string() + "/";
    for (std::string line; std::getline(all, line);) {
      for (size_t at = line.find(folder); at != std::string::npos; at = line.find(folder)) {
        line.erase(at, folder.size());
      }
      lines.push_back(line);
    }
  }
  return lines;
}
