#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/yaml.h"

/// Numbers of papers, to stand beside measured ones: never mixed with them, never expected by a
/// test.
namespace kvlab::published {

/// A quantity of a published table.
struct Metric {
  std::string name;
  std::string unit;
  /// The metrics of the catalogue that stand beside it. None: it cannot be measured here.
  std::vector<std::string> beside;
  std::string proxy;  // how their quantity differs; empty: it is the same
  /// Label whose value is divided by that of the row: a speed-up. Empty: the value itself.
  std::string over;
};

/// A number as it was printed: 70.00 is not 70.
struct Number {
  std::string metric;
  double value = 0;
  std::string text;
};

/// One row of a published table.
struct Row {
  std::string method;   // as the paper calls it
  std::string label;    // of the experiment's rows that it stands beside; empty: none
  std::string not_run;  // why there is none
  /// Columns of the summary ("tokens", "dataset") with the values that those rows have.
  std::vector<std::pair<std::string, nlohmann::json>> at;
  std::string model, gpu;
  std::string certainty;  // one of certainties()
  std::vector<Number> values;
  std::vector<Number> spread;               // its ±
  std::optional<double> bits, stored_bits;  // per element: as published, as their code stores
  std::string missing;                      // why there are no values
  std::string note;
};

struct Table {
  std::string paper, table, title;
  std::vector<Metric> metrics;
  std::vector<Row> rows;
  std::vector<std::string> notes;
};

/// How sure we are of a number: it was read where it was published, is quoted by others, or sources
/// do not agree.
const std::vector<std::string>& certainties();

/// The table of a *.published.yaml file (experiments/papers/README.md has the keys). Mistakes are
/// added to `problems` with their places.
Table read(const yaml::Node& root, yaml::Problems& problems);

}  // namespace kvlab::published
