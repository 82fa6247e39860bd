#include "data/synthetic_params.h"

#include <algorithm>
#include <initializer_list>
#include <string_view>

namespace kvlab::data {
namespace {

using Used = std::function<bool(const Settings&)>;

// Elements stay finite in fp16: none is larger than the norm of its row.
constexpr double kLargestNorm = 60000.0;

bool is_one_of(const Settings& item, std::initializer_list<std::string_view> patterns) {
  const std::string pattern = get_text(item, "pattern");
  return std::find(patterns.begin(), patterns.end(), pattern) != patterns.end();
}

Used only(std::string_view pattern) {
  return [pattern](const Settings& item) { return is_one_of(item, {pattern}); };
}

bool has_base_key(const Settings& item) { return !is_one_of(item, {"gaussian", "constant"}); }
bool has_mean(const Settings& item) {
  return has_base_key(item) && !is_one_of(item, {"outlier_channels"});
}
bool is_random(const Settings& item) { return !is_one_of(item, {"constant"}); }

Param count(std::string key, int64_t fallback, double least, double most, std::string help,
            Used used = {}) {
  return {.key = std::move(key),
          .type = Param::Type::integer,
          .fallback = fallback,
          .least = least,
          .most = most,
          .help = std::move(help),
          .used = std::move(used)};
}

Param real(std::string key, double fallback, double least, double most, std::string help,
           Used used = {}) {
  return {.key = std::move(key),
          .type = Param::Type::real,
          .fallback = fallback,
          .least = least,
          .most = most,
          .help = std::move(help),
          .used = std::move(used)};
}

std::vector<Param> shape_params() {
  return {
      {.key = "pattern",
       .fallback = "gaussian",
       .choices = {"gaussian", "outlier_channels", "mean_dominated", "low_norm_sink", "high_norm",
                   "modality", "constant"},
       .help = "what the keys look like"},
      count("tokens", 4096, 1, 1 << 24, "T, length of a sequence"),
      count("kv_heads", 8, 1, 1024, "Hkv, key/value heads"),
      count("q_heads", 32, 1, 4096, "Hq, query heads; a multiple of kv_heads"),
      count("head_dim", 128, 1, 4096, "d, channels of a head"),
      count("batch", 1, 1, 1024, "B, sequences"),
      {.key = "dtype",
       .fallback = "bf16",
       .choices = {"bf16", "fp16", "fp32"},
       .help = "type in which q, k and v are held"},
      count("hidden", 256, 0, 65536,
            "D, rows of W_O (independent normals of variance 1/(Hq·d)); 0: no W_O"),
      count("model", 0, 0, 2147483647.0,
            "which weights: draws mean vectors, outlier channels, sink directions and W_O; "
            "the cell's seed draws the tokens"),
      count("passage", 0, 0, 2147483647.0,
            "which text: another number gives other tokens of the same model, as a calibration "
            "set needs",
            is_random),
  };
}

std::vector<Param> key_params() {
  return {
      real("key_norm", 17.0, 0.0, kLargestNorm,
           "mean norm of a key: 17 as Llama-2-7B, 6.5 as Qwen3-VL-8B",
           [](const Settings& item) { return !is_one_of(item, {"modality", "constant"}); }),
      real("mean_fraction", 0.9, 0.0, 1.0,
           "share of a key's squared norm that lies in the mean vector of its head", has_mean),
      count("outlier_count", 8, 0, 4096, "outlier channels of a head (at most head_dim)",
            has_base_key),
      real("outlier_gain", 6.0, 1.0, 1000.0, "magnitude of an outlier channel over the others",
           has_base_key),
      count("oscillating", 2, 0, 4096,
            "outlier channels whose mean turns with the position, as fast pairs of RoPE do",
            has_mean),
      real("oscillation_period", 6.283185307179586, 2.0, 1e6,
           "tokens of one turn; 2π is the fastest pair of RoPE", has_mean),
      real("jitter", 0.08, 0.0, 1.0,
           "standard deviation of the log of a token's norm, shared by its heads", has_base_key),
      real("head_jitter", 0.05, 0.0, 1.0, "the same, drawn for each head", has_base_key),
  };
}

std::vector<Param> pattern_params() {
  const Used sinks = only("low_norm_sink");
  const Used high = only("high_norm");
  const Used modality = only("modality");
  return {
      {.key = "sink_positions",
       .type = Param::Type::text,
       .fallback = "0,4",
       .help = "positions of sinks, separated by commas; none: only those of sink_every",
       .used = sinks},
      count("sink_every", 97, 0, 1 << 24, "a further sink every so many tokens; 0: none", sinks),
      real("sink_norm", 2.7, 0.0, kLargestNorm,
           "norm of a sink's key: 2.7 as Llama-2-7B; 0.35 beside key_norm 7.8 is the extreme case",
           sinks),
      {.key = "sink_form",
       .fallback = "spike",
       .choices = {"spike", "flat"},
       .help = "a sink's key: one spike channel, or the same magnitude in every channel",
       .used = sinks},
      real("sink_share", 0.9, 0.0, 1.0,
           "share of a sink's squared norm that has its form; the rest is noise", sinks),
      real("sink_value_norm", 0.3, 0.0, kLargestNorm, "norm of a sink's value", sinks),
      real("sink_logit_gain", 6.0, 0.0, 30.0,
           "q·k/√d of a sink above the mean of the other tokens, as far as query_norm allows",
           sinks),
      real("high_norm", 60.0, 0.0, kLargestNorm, "norm of a high-norm key", high),
      count("high_every", 61, 1, 1 << 24, "a high-norm key every so many tokens", high),
      real("text_norm", 1.1, 0.0, kLargestNorm, "mean norm of a text token's key", modality),
      real("vision_norm", 0.4, 0.0, kLargestNorm, "mean norm of a vision token's key", modality),
      count("text_run", 12, 1, 1 << 24, "tokens of a text run, which comes first", modality),
      count("vision_run", 651, 1, 1 << 24, "tokens of a vision run", modality),
      real("constant_value", 1.0, -kLargestNorm, kLargestNorm,
           "every element of the keys and values", only("constant")),
  };
}

std::vector<Param> other_params() {
  return {
      real("value_norm", 5.5, 0.0, kLargestNorm, "mean norm of a value", is_random),
      real("query_norm", 15.0, 0.0, kLargestNorm, "mean norm of a query"),
      real("query_jitter", 0.04, 0.0, 1.0, "standard deviation of the log of a query's norm",
           has_base_key),
      real(
          "query_spread", 0.5, 0.0, 2.0,
          "standard deviation of the log of the scale of a query channel (fixed for a query head); "
          "0: isotropic, which leaves covariances of queries nothing to find",
          has_base_key),
      {.key = "rope",
       .fallback = "after",
       .choices = {"after", "before"},
       .help = "what the pattern describes: keys and queries after RoPE (keys before it are turned "
               "back from them), or before it, and RoPE turns both as in a model"},
      real("rope_theta", 10000.0, 1.0, 1e9, "base of RoPE's frequencies"),
  };
}

}  // namespace

const std::vector<Param>& synthetic_params() {
  static const std::vector<Param> params = [] {
    std::vector<Param> all = shape_params();
    for (const auto& part : {key_params(), other_params(), pattern_params()}) {
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }();
  return params;
}

}  // namespace kvlab::data
