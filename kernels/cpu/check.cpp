#include "cpu/check.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace kvlab::kernels::cpu {
namespace {

void demand(bool holds, const std::string& sentence) {
  if (!holds) throw std::invalid_argument(sentence);
}

bool keeps_whole_groups(const WindowRule& rule, const SideFormat& side) {
  if (side.axis == Axis::token) return true;
  const bool whole_buffer =
      (rule.flush == Flush::full || rule.flush == Flush::kivi) && rule.recent > 0;
  return rule.group % side.group == 0 && (!whole_buffer || rule.recent % side.group == 0);
}

void check_grid(const char* name, const Grid& grid, const SideFormat& side) {
  demand(
      grid.bits == side.bits && grid.zero == side.zero && grid.params == side.params,
      std::string(name) + ": the grid and the cache's format differ in bits, zero or parameters");
}

void check_clip(const char* name, const SideEncode& side, int most) {
  if (side.clip == Clip::calibrated) {
    demand(side.thresholds != nullptr, std::string(name) + ": calibrated thresholds are missing");
  } else if (side.clip != Clip::none) {
    demand(side.clip_index >= 0 && side.clip_index < most,
           std::string(name) + ": the clip index " + std::to_string(side.clip_index) +
               " is not below " + std::to_string(most));
  }
}

}  // namespace

void check_cache(const CacheView& cache) {
  if (const auto why = refusal(cache.format)) throw std::invalid_argument(*why);
  const WindowRule& rule = cache.rule;
  demand(cache.batch >= 0 && cache.kv_heads > 0, "a cache needs a batch and KV heads");
  demand(cache.batch == 0 || cache.tokens != nullptr, "the numbers of tokens are missing");
  demand(rule.sink >= 0 && rule.recent >= 0 && rule.group >= 1,
         "a window rule's counts are negative");
  demand(keeps_whole_groups(rule, cache.format.key),
         "the window rule moves parts of per-channel groups");
  demand(rule.sink == 0 || (cache.sink_key != nullptr && cache.sink_value != nullptr &&
                            cache.sink_capacity >= rule.sink),
         "the sink's buffer is missing or too small");
  demand(cache.recent_key != nullptr && cache.recent_value != nullptr && cache.recent_capacity > 0,
         "the recent ring is missing");
  const int per_block = block_tokens(cache.format);
  for (int b = 0; b < cache.batch; ++b) {
    const int tokens = cache.tokens[b];
    demand(tokens >= 0, "a sequence's number of tokens is negative");
    const HistoryEnds ends = history_ends(rule, tokens);
    const int begin = history_begin(cache, tokens);
    const std::int64_t blocks =
        (static_cast<std::int64_t>(std::max(ends.key, ends.value)) - begin + per_block - 1) /
        per_block;
    demand(blocks == 0 || (cache.pool != nullptr && cache.block_table != nullptr &&
                           (cache.table_stride == 0 || blocks <= cache.table_stride)),
           "the block table has no room for sequence " + std::to_string(b));
    demand(tokens - std::min(ends.key, ends.value) <= cache.recent_capacity,
           "the recent ring has no room for sequence " + std::to_string(b));
  }
}

void check_spec(const CacheView& cache, const EncodeSpec& spec) {
  const Format& format = cache.format;
  check_grid("keys", spec.key.grid, format.key);
  check_grid("values", spec.value.grid, format.value);
  check_rotation(spec.key.rotation);
  check_rotation(spec.value.rotation);
  demand(spec.value.scale == TokenScale::none && spec.value.center == nullptr,
         "values have neither a centre nor a token scale");
  const TokenScale scale = spec.key.scale;
  const Norm norm = scale == TokenScale::none       ? Norm::none
                    : scale == TokenScale::l2_heads ? Norm::heads
                                                    : Norm::head;
  demand(norm == format.norm, "the token scale and the cache's norm differ");
  demand(!format.norm_inverse || scale == TokenScale::l2_heads || scale == TokenScale::l2_head,
         "only an L2 norm is stored as its inverse");
  check_clip("keys", spec.key, spec.key.clip == Clip::row ? format.dim : format.key.group);
  check_clip("values", spec.value, spec.value.clip == Clip::row ? format.dim : format.value.group);
}

void check_rotation(const Rotation& rotation) {
  demand(rotation.kind != Rotation::Kind::dense || rotation.matrix != nullptr,
         "a dense rotation has no matrix");
}

void check_threads(int threads) {
  demand(threads >= 1, "at least one thread is needed, not " + std::to_string(threads));
}

}  // namespace kvlab::kernels::cpu
