#include "data/synthetic_spec.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/names.h"
#include "data/synthetic_params.h"

namespace kvlab::data {
namespace {

constexpr std::array<std::pair<std::string_view, Pattern>, 7> kPatterns = {{
    {"gaussian", Pattern::gaussian},
    {"outlier_channels", Pattern::outlier_channels},
    {"mean_dominated", Pattern::mean_dominated},
    {"low_norm_sink", Pattern::low_norm_sink},
    {"high_norm", Pattern::high_norm},
    {"modality", Pattern::modality},
    {"constant", Pattern::constant},
}};

std::optional<Pattern> pattern_of(std::string_view name) {
  for (const auto& [known, pattern] : kPatterns) {
    if (known == name) return pattern;
  }
  return std::nullopt;
}

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(' ');
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(' ') - first + 1);
}

/// "0, 4" → {0, 4}; "none" → {}; nothing where the text is neither.
std::optional<std::set<int64_t>> positions_in(std::string_view text) {
  std::set<int64_t> positions;
  if (trimmed(text) == "none") return positions;
  while (true) {
    const size_t comma = text.find(',');
    const std::string_view word = trimmed(text.substr(0, comma));
    int64_t position = 0;
    const auto [end, code] = std::from_chars(word.begin(), word.end(), position);
    if (code != std::errc() || end != word.end() || position < 0) return std::nullopt;
    positions.insert(position);
    if (comma == std::string_view::npos) return positions;
    text.remove_prefix(comma + 1);
  }
}

bool turn_of(int64_t token, int64_t every) { return every > 0 && token > 0 && token % every == 0; }

}  // namespace

std::optional<DType> dtype_of(std::string_view name) {
  for (const DType type : {DType::bf16, DType::fp16, DType::fp32}) {
    if (name_of(type) == name) return type;
  }
  return std::nullopt;
}

Settings with_defaults(const Settings& params) {
  Settings all = params;
  for (const Param& param : synthetic_params()) all.emplace(param.key, param.fallback);
  return all;
}

std::optional<std::string> refuse_synthetic(const Settings& params) {
  const Settings all = with_defaults(params);
  if (!pattern_of(get_text(all, "pattern"))) {
    return fmt::format("pattern '{}' is not known", get_text(all, "pattern"));
  }
  if (!dtype_of(get_text(all, "dtype"))) {
    return fmt::format("dtype '{}' is not one of bf16, fp16, fp32", get_text(all, "dtype"));
  }
  const int64_t q_heads = get_int(all, "q_heads");
  const int64_t kv_heads = get_int(all, "kv_heads");
  if (q_heads % kv_heads != 0) {
    return fmt::format("q_heads: {} cannot be shared by {}", counted(q_heads, "query head"),
                       counted(kv_heads, "key/value head"));
  }
  const std::string rope = get_text(all, "rope");
  if (rope != "after" && rope != "before") {
    return fmt::format("rope '{}' is not one of after, before", rope);
  }
  if (rope == "before" && get_int(all, "head_dim") % 2 != 0) {
    return fmt::format("rope: before turns pairs of channels, head_dim {} is odd",
                       get_int(all, "head_dim"));
  }
  const std::string positions = get_text(all, "sink_positions");
  if (!positions_in(positions)) {
    return fmt::format(
        "sink_positions: expected positions from 0 on, separated by commas, or none, found '{}'",
        positions);
  }
  return std::nullopt;
}

bool synthetic_uses_seed(const Settings& params) {
  return get_text(with_defaults(params), "pattern") != "constant";
}

SyntheticSpec read_spec(const Settings& params) {
  if (const auto reason = refuse_synthetic(params)) throw Error("synthetic data: " + *reason);
  const Settings all = with_defaults(params);
  const auto integer = [&](const char* key) { return get_int(all, key); };
  const auto real = [&](const char* key) { return get_real(all, key); };
  return {
      .pattern = *pattern_of(get_text(all, "pattern")),
      .tokens = integer("tokens"),
      .kv_heads = integer("kv_heads"),
      .q_heads = integer("q_heads"),
      .head_dim = integer("head_dim"),
      .batch = integer("batch"),
      .hidden = integer("hidden"),
      .model = integer("model"),
      .passage = integer("passage"),
      .dtype = *dtype_of(get_text(all, "dtype")),
      .key_norm = real("key_norm"),
      .mean_fraction = real("mean_fraction"),
      .outlier_gain = real("outlier_gain"),
      .oscillation_period = real("oscillation_period"),
      .jitter = real("jitter"),
      .head_jitter = real("head_jitter"),
      .outlier_count = integer("outlier_count"),
      .oscillating = integer("oscillating"),
      .value_norm = real("value_norm"),
      .query_norm = real("query_norm"),
      .query_jitter = real("query_jitter"),
      .query_spread = real("query_spread"),
      .sink_positions = *positions_in(get_text(all, "sink_positions")),
      .sink_every = integer("sink_every"),
      .sink_is_spike = get_text(all, "sink_form") == "spike",
      .sink_norm = real("sink_norm"),
      .sink_share = real("sink_share"),
      .sink_value_norm = real("sink_value_norm"),
      .sink_logit_gain = real("sink_logit_gain"),
      .before_rope = get_text(all, "rope") == "before",
      .rope_theta = real("rope_theta"),
      .high_norm = real("high_norm"),
      .text_norm = real("text_norm"),
      .vision_norm = real("vision_norm"),
      .constant_value = real("constant_value"),
      .high_every = integer("high_every"),
      .text_run = integer("text_run"),
      .vision_run = integer("vision_run"),
  };
}

bool SyntheticSpec::is_sink(int64_t token) const {
  return pattern == Pattern::low_norm_sink &&
         (sink_positions.contains(token) || turn_of(token, sink_every));
}

bool SyntheticSpec::is_high(int64_t token) const {
  return pattern == Pattern::high_norm && turn_of(token, high_every);
}

double SyntheticSpec::key_norm_at(int64_t token) const {
  if (is_sink(token)) return sink_norm;
  if (is_high(token)) return high_norm;
  if (pattern == Pattern::modality) {
    return token % (text_run + vision_run) < text_run ? text_norm : vision_norm;
  }
  return key_norm;
}

}  // namespace kvlab::data
