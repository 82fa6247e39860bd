#include "report/results_maker.h"

namespace kvlab::report {

using nlohmann::json;

ResultsMaker::ResultsMaker(std::vector<std::string> axes) {
  results.axes = std::move(axes);
  results.attributes = {{"schema", "kvlab.results/1"}, {"name", "small"}, {"code_version", "aa11"}};
  set_method(R"({"kind": "uniform", "bits": 2, "group": 32, "grid": "float_zero", "clip": "none",
                 "rounding": "half_even", "params": "fp16"})",
             R"({"sink": 0, "recent": 128, "flush": "kivi"})");
}

void ResultsMaker::set_method(const std::string& codec, const std::string& window) {
  codec_ = json::parse(codec);
  window_ = json::parse(window);
}

store::CellResult& ResultsMaker::add(const std::string& label, const std::string& dataset,
                                     int64_t layer, std::map<std::string, double> scalars,
                                     const std::vector<json>& point) {
  store::SummaryRow row;
  row.row = static_cast<int64_t>(results.rows.size());
  row.cell = "cell" + std::to_string(row.row);
  row.method = row.label = label;
  row.dataset = dataset;
  row.layer = layer;
  row.backend = "reference";
  row.sweep = point;
  results.rows.push_back(row);

  store::CellResult& cell = results.cells[row.cell];
  cell.id = row.cell;
  cell.status = "complete";
  cell.code_version = "aa11";
  cell.scalars = std::move(scalars);
  cell.config = json{
      {"dataset",
       {{"head_dim", 64}, {"kv_heads", 3}, {"q_heads", 9}, {"tokens", 2048}, {"dtype", "bf16"}}},
      {"method",
       {{"id", label},
        {"key", {{"codec", codec_}}},
        {"value", {{"codec", codec_}}},
        {"window",
         window_}}}}.dump();
  return cell;
}

store::Results small_results() {
  ResultsMaker maker;
  const auto add_all = [&](const std::string& label, double wo_rel, double bits) {
    double step = 0;
    for (const char* dataset : {"austen", "jargon"}) {
      for (const int64_t layer : {2, 10}) {
        maker.add(label, dataset, layer, {{"wo_rel", wo_rel + step}, {"bits_per_element", bits}});
        step += 0.01;
      }
    }
  };
  add_all("kivi", 0.2, 3.25);
  maker.set_method(R"({"kind": "uniform", "bits": 2, "group": 32, "grid": "rounded_zero",
                       "clip": 0.96, "rounding": "half_even", "params": "fp16"})",
                   R"({"sink": 64, "recent": 256, "flush": "block"})");
  add_all("U·H·P", 0.1, 2.5);
  store::CellResult& refused = maker.add("quarot", "austen", 2, {});
  refused.status = "unsupported";
  refused.reason = "recent 100 is no multiple of 32";
  return maker.results;
}

}  // namespace kvlab::report
