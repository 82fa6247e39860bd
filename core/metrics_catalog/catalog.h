#pragma once

#include <string>
#include <vector>

namespace kvlab::metrics {

/// What a metric's stored array runs over.
enum class Over { kv_heads, q_heads, none };

/// One line of contract section 5.
struct MetricInfo {
  std::string name;
  std::string unit;     // "", "bits", "bytes", "nats", "us", "tokens", "Mop"
  std::string measure;  // the `measure:` word that asks for it
  Over over = Over::none;
  bool is_count = false;          // the scalar is the sum over heads, not the mean
  bool larger_is_better = false;  // cosine, top-1 agreement
  std::string help;
  bool is_share_of_trials = false;  // of independent trials: its interval is Wilson's
};

/// Every metric, in the order of contract section 5.
const std::vector<MetricInfo>& catalog();

/// The entry of this name, or nullptr.
const MetricInfo* find_metric(const std::string& name);

/// Whether more of it is better, also of a column that only benchmarks have: a rate or a share of
/// one.
bool larger_is_better(const std::string& name);

/// Whether the metric of a head is the square root of a ratio of sums, a ratio of norms: out_rel
/// and wo_rel with their parts. Other metrics by position are ratios of sums themselves.
bool is_norm_ratio(const std::string& name);

/// The words that `measure:` takes, for samples and for whole models.
const std::vector<std::string>& measures();

/// Those of whole models: perplexity, needle, divergence.
const std::vector<std::string>& model_measures();

}  // namespace kvlab::metrics
