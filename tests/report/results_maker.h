#pragma once

#include <map>
#include <string>
#include <vector>

#include "store/results.h"

namespace kvlab::report {

/// Results as a run leaves them, built row by row.
class ResultsMaker {
 public:
  explicit ResultsMaker(std::vector<std::string> axes = {});

  /// A row with a complete cell of its own.
  store::CellResult& add(const std::string& label, const std::string& dataset, int64_t layer,
                         std::map<std::string, double> scalars,
                         const std::vector<nlohmann::json>& point = {});

  /// Codec (of both sides) and window, in JSON, of the cells added from here on.
  void set_method(const std::string& codec, const std::string& window);

  store::Results results;

 private:
  nlohmann::json codec_, window_;
};

/// Two methods that are complete on two datasets of two layers each, one that is unsupported.
store::Results small_results();

}  // namespace kvlab::report
