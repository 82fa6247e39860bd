#include "config/calibration_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>

#include "base/names.h"
#include "config/sweep.h"

namespace kvlab::config {
namespace {

// Two texts share runs of a few words by chance, hardly ever 64 tokens.
constexpr int64_t kSharedRun = 64;

/// Query rows behind the covariance of one KV head.
int64_t query_rows(const Described& calibration) {
  const DatasetInfo& info = calibration.info;
  return info.batch * (info.q_heads / std::max<int64_t>(info.kv_heads, 1)) *
         (calibration.item.source == "synthetic" ? info.tokens : info.probes);
}

/// Calls `visit` with a hash of each run of `length` tokens within a sequence, until it returns
/// true.
template <typename Visit>
bool any_run(const DatasetInfo& info, int64_t length, Visit visit) {
  constexpr uint64_t kBase = 0x9E3779B97F4A7C15;  // odd, so that powers never vanish
  const auto total = static_cast<int64_t>(info.token_ids.size());
  const int64_t sequence = total / std::max<int64_t>(info.batch, 1);
  uint64_t leaving = 1;
  for (int64_t i = 1; i < length; ++i) leaving *= kBase;
  for (int64_t first = 0; first + sequence <= total && sequence >= length; first += sequence) {
    uint64_t hash = 0;
    for (int64_t i = 0; i < sequence; ++i) {
      const auto token = [&](int64_t at) {
        return static_cast<uint64_t>(info.token_ids[static_cast<size_t>(first + at)]) + 1;
      };
      if (i >= length) hash -= token(i - length) * leaving;
      hash = hash * kBase + token(i);
      if (i + 1 >= length && visit(hash)) return true;
    }
  }
  return false;
}

bool shares_a_run(const DatasetInfo& a, const DatasetInfo& b) {
  const int64_t length = std::min({kSharedRun, a.tokens, b.tokens});
  std::unordered_set<uint64_t> runs;
  any_run(a, length, [&](uint64_t hash) {
    runs.insert(hash);
    return false;
  });
  return any_run(b, length, [&](uint64_t hash) { return runs.contains(hash); });
}

/// Synthetic samples of one model and passage are the same text, however long they are.
bool same_passage(const DatasetItem& a, const DatasetItem& b) {
  nlohmann::json x = used_params(a);
  nlohmann::json y = used_params(b);
  for (const char* key : {"tokens", "batch", "dtype"}) {
    x.erase(key);
    y.erase(key);
  }
  return x == y;
}

}  // namespace

std::string name_of(const DatasetItem& item) {
  if (item.source != "synthetic") return item.source + " " + item.path.string();
  return "synthetic " + get_text(item.params, "pattern");
}

std::vector<std::string> calibration_errors(const Described& calibration,
                                            const Described& evaluated, int64_t layer) {
  std::vector<std::string> errors;
  const DatasetInfo& ours = calibration.info;
  const DatasetInfo& theirs = evaluated.info;
  if (ours.kv_heads != theirs.kv_heads || ours.q_heads != theirs.q_heads ||
      ours.head_dim != theirs.head_dim) {
    errors.push_back(fmt::format(
        "calibration {} has {} query heads, {} KV heads and head dimension {}, but {} has {}, {} "
        "and {}",
        name_of(calibration.item), ours.q_heads, ours.kv_heads, ours.head_dim,
        name_of(evaluated.item), theirs.q_heads, theirs.kv_heads, theirs.head_dim));
    return errors;
  }
  const bool has_layer =
      calibration.item.source == "synthetic" ||
      std::find(ours.layers.begin(), ours.layers.end(), layer) != ours.layers.end();
  if (!has_layer) {
    errors.push_back(fmt::format("calibration {} has no layer {}, which {} is evaluated on",
                                 name_of(calibration.item), layer, name_of(evaluated.item)));
  }
  if (query_rows(calibration) < ours.head_dim) {
    errors.push_back(
        fmt::format("calibration {} has {} query rows a KV head, fewer than the head dimension {}",
                    name_of(calibration.item), query_rows(calibration), ours.head_dim));
  }
  return errors;
}

std::vector<std::string> calibration_warnings(const Described& calibration,
                                              const Described& evaluated) {
  std::vector<std::string> warnings;
  const DatasetInfo& info = calibration.info;
  if (query_rows(calibration) < 16 * info.head_dim) {
    warnings.push_back(
        fmt::format("calibration has {} a KV head, fewer than 16 x head dimension = {}",
                    counted(query_rows(calibration), "query row"), 16 * info.head_dim));
  }
  if (2 * info.tokens < evaluated.info.tokens) {
    warnings.push_back(fmt::format("calibration is {} long, less than half of the evaluated {}",
                                   counted(info.tokens, "token"), evaluated.info.tokens));
  }
  if (calibration.item.source == "capture" && info.probes < info.tokens) {
    warnings.push_back(fmt::format("calibration holds the queries of {} of its {} positions",
                                   info.probes, info.tokens));
  }
  return warnings;
}

std::string overlap(const Described& calibration, const Described& evaluated, int64_t seed) {
  const bool is_drawn = calibration.item.source == "synthetic";
  if (is_drawn != (evaluated.item.source == "synthetic")) return "no";
  if (is_drawn) {
    const bool same_draw = seed == kCalibrationSeed || !evaluated.info.uses_seed;
    return same_draw && same_passage(calibration.item, evaluated.item) ? "yes" : "no";
  }
  const bool is_whole = calibration.item.stretch == data::Stretch{};
  if (is_whole && calibration.info.content == evaluated.info.content) return "yes";
  if (calibration.info.token_ids.empty() || evaluated.info.token_ids.empty()) return "unknown";
  return shares_a_run(calibration.info, evaluated.info) ? "yes" : "no";
}

}  // namespace kvlab::config
