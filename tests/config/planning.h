#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/hash.h"
#include "config/experiment_file.h"
#include "config/plan.h"

/// Answers for files that are empty, and for synthetic items from their parameters.
class FakeData {
 public:
  /// Another answer for the capture of this file name.
  kvlab::config::DatasetInfo& capture(const std::string& file) {
    return captures_.try_emplace(file, standard(file)).first->second;
  }

  kvlab::config::Plan plan(const kvlab::config::Experiment& experiment) {
    return kvlab::config::make_plan(
        experiment, [&](const kvlab::config::DatasetItem& item) { return describe(item); }, refuse);
  }

  int asked = 0;
  kvlab::config::Refuse refuse = [](const auto&, const auto&, const auto&) { return std::nullopt; };

 private:
  static kvlab::config::DatasetInfo standard(const std::string& file) {
    kvlab::config::DatasetInfo info;
    info.kv_heads = 3;
    info.q_heads = 9;
    info.tokens = 2048;
    info.head_dim = 64;
    info.probes = 2048;
    info.dtype = kvlab::DType::bf16;
    info.layers = {0, 10, 20};
    info.content = kvlab::sha256(file);
    for (int32_t i = 0; i < 2048; ++i) {
      info.token_ids.push_back(static_cast<int32_t>(std::hash<std::string>{}(file) % 1000) + i * 7);
    }
    return info;
  }

  kvlab::config::DatasetInfo describe(const kvlab::config::DatasetItem& item) {
    ++asked;
    if (item.source == "capture") return capture(item.path.filename().string());
    if (item.model) return whole_model(item);
    kvlab::config::DatasetInfo info;
    info.batch = kvlab::get_int(item.params, "batch");
    info.kv_heads = kvlab::get_int(item.params, "kv_heads");
    info.q_heads = kvlab::get_int(item.params, "q_heads");
    info.tokens = kvlab::get_int(item.params, "tokens");
    info.head_dim = kvlab::get_int(item.params, "head_dim");
    info.dtype = item.params.at("dtype") == "fp32" ? kvlab::DType::fp32 : kvlab::DType::bf16;
    info.uses_seed = item.params.at("pattern") != "constant";
    info.layers = {0};
    info.content = kvlab::sha256(nlohmann::json(item.params).dump());
    return info;
  }

  static kvlab::config::DatasetInfo whole_model(const kvlab::config::DatasetItem& item) {
    kvlab::config::DatasetInfo info =
        standard(item.path.filename().string() + std::to_string(item.model->passage));
    info.dtype = item.model->cache_dtype;
    info.layers = {-1};
    info.model_layers = 3;
    return info;
  }

  std::map<std::string, kvlab::config::DatasetInfo> captures_;
};

/// An experiment's folder with three captures, and the plans of texts in it.
struct Fixture {
  Fixture() {
    for (const char* file : {"eval.h5", "other.h5", "cal.h5"}) folder.write(file, "");
  }

  kvlab::config::Plan plan(const std::string& text) { return data.plan(folder.load(text)); }

  /// The mistakes that planning finds, without the experiment's own path.
  std::vector<std::string> mistakes(const std::string& text) {
    std::vector<std::string> lines;
    try {
      plan(text);
    } catch (const kvlab::ConfigError& error) {
      for (const kvlab::Problem& problem : error.problems()) {
        std::string message = problem.message;
        const std::string path = folder.path().string() + "/";
        for (size_t at = message.find(path); at != std::string::npos; at = message.find(path)) {
          message.erase(at, path.size());
        }
        lines.push_back(message);
      }
    }
    return lines;
  }

  /// Where those mistakes are: "line:column" each.
  std::vector<std::string> places(const std::string& text) {
    std::vector<std::string> found;
    try {
      plan(text);
    } catch (const kvlab::ConfigError& error) {
      for (const kvlab::Problem& problem : error.problems()) {
        found.push_back(std::to_string(problem.line) + ":" + std::to_string(problem.column));
      }
    }
    return found;
  }

  ExperimentFolder folder;
  FakeData data;
};

inline const std::string kCapture =
    "schema: 1\ndataset: {source: capture, path: eval.h5, layers: [10]}\n"
    "calibration: {source: capture, path: cal.h5}\n";
inline const std::string kSynthetic =
    "schema: 1\ndataset: {source: synthetic, pattern: gaussian, tokens: 1024}\n";

inline std::vector<std::string> states(const kvlab::config::Plan& plan) {
  std::vector<std::string> result;
  for (const kvlab::config::Row& row : plan.rows) {
    const kvlab::config::Cell& cell = plan.cells[row.cell];
    result.push_back(cell.state == kvlab::config::CellState::run ? "run"
                     : cell.state == kvlab::config::CellState::excluded
                         ? "excluded: " + cell.reason
                         : "unsupported: " + cell.reason);
  }
  return result;
}

inline bool says(const std::vector<std::string>& warnings, const std::string& text) {
  return std::any_of(warnings.begin(), warnings.end(), [&](const std::string& warning) {
    return warning.find(text) != std::string::npos;
  });
}
