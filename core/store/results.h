#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace kvlab::store {

/// A dense array of doubles with its shape; [] is one number.
struct Array {
  std::vector<int64_t> shape;
  std::vector<double> data;
};

/// What one cell left behind: the group /cells/<id> of kvlab.results/1.
struct CellResult {
  std::string id;
  std::string config;  // JSON
  std::string status;  // complete | failed | unsupported | excluded | interrupted
  std::string reason;
  std::string started;  // ISO 8601, UTC
  double seconds = 0;
  std::string code_version;
  std::vector<std::string> warnings;
  std::map<std::string, double> scalars;  // metric name to the value of the summary column
  std::map<std::string, Array> metrics;   // as measured, [Hkv], [Hq] or []
  std::map<std::string, Array> blocks;    // metric name to its sums over blocks, [H, blocks, 2]
  std::map<std::string, Array> samples;   // raw timings, nanoseconds
  std::map<std::string, Array> tokens;    // per-token arrays
  std::map<std::string, Array> rotation;  // "key", "value": [1 or Hkv, d, d]
  std::map<std::string, Array> center;    // "key", "value": [Hkv, d]
  std::map<std::string, Array>
      learning;  // per-head losses and kept heads of learned rotations, [Hkv]
  int64_t hist_key[2] = {0, 0};
  int64_t hist_value[2] = {0, 0};
  int64_t tokens_total = 0;  // T: hist_tokens + window_tokens of either side
};

/// One row of the summary as planned; status, reason and metrics come from its cell.
struct SummaryRow {
  int64_t row = 0;  // place in the whole experiment, the same in every shard
  std::string cell;
  std::string method, label, dataset, text, backend;
  int64_t layer = 0, seed = 0;
  bool seed_used = false;
  std::vector<nlohmann::json> sweep;
  std::vector<std::string> warnings;  // of the row alone; warnings_of() adds those of its cell
};

/// Everything a results file holds.
struct Results {
  std::map<std::string, std::string>
      attributes;  // root attributes: schema, name, created, code_version, argv, host …
  /// A root attribute; empty where there is none.
  std::string attribute(const std::string& name) const {
    const auto found = attributes.find(name);
    return found == attributes.end() ? "" : found->second;
  }
  std::string experiment_source, experiment_resolved;
  std::vector<std::string> axes;
  std::vector<SummaryRow> rows;
  std::map<std::string, CellResult> cells;
};

}  // namespace kvlab::store
