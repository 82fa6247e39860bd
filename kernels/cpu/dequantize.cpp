#include <vector>

#include "cpu/check.h"
#include "cpu/decode_token.h"
#include "cpu/parallel.h"
#include "cpu/rotate.h"
#include "kvlab/kernels/cpu.h"

namespace kvlab::kernels::cpu {
namespace {

/// Rows [count, dim] of a side's block from the codec's side back to the space of the captured
/// tensors.
void undo(const RowOps& ops, const SideEncode& how, const PackedSide& packed, int head, float* rows,
          int count, float* scratch) {
  const int dim = packed.format->dim;
  for (int t = 0; packed.norm != nullptr && t < count; ++t) {
    const float norm = norm_factor(packed, t);
    for (int c = 0; c < dim; ++c) rows[t * dim + c] *= norm;
  }
  rotate(ops, how.rotation, head, true, rows, count, dim, scratch);
  for (int t = 0; how.center != nullptr && t < count; ++t) {
    for (int c = 0; c < dim; ++c) rows[t * dim + c] += how.center[head * dim + c];
  }
}

template <Side kind>
void decode_block(const RowOps& ops, const PackedSide& packed, const SideEncode* how, int head,
                  int count, float* rows, float* scratch) {
  for (int t = 0; t < count; ++t) decode_token<kind>(packed, t, rows + t * packed.format->dim);
  if (how != nullptr) undo(ops, *how, packed, head, rows, count, scratch);
}

}  // namespace

void dequantize(const CacheView& cache, const EncodeSpec* spec, void* key, void* value, Type type,
                std::int64_t row_capacity, int threads) {
  check_cache(cache);
  check_threads(threads);
  if (spec != nullptr) check_spec(cache, *spec);
  const Layout layout = layout_of(cache.format);
  const int dim = cache.format.dim;
  const int per_block = block_tokens(cache.format);
  const RowOps& ops = row_ops();

  std::vector<std::pair<int, int>> blocks;  // sequence, block
  for (int b = 0; b < cache.batch; ++b) {
    const HistoryEnds ends = history_ends(cache.rule, cache.tokens[b]);
    const int tokens = std::max(ends.key, ends.value) - history_begin(cache, cache.tokens[b]);
    if (tokens > row_capacity) {
      throw std::invalid_argument("the history of sequence " + std::to_string(b) + " has " +
                                  std::to_string(tokens) + " tokens, room is for " +
                                  std::to_string(row_capacity));
    }
    for (int block = 0; block * per_block < tokens; ++block) blocks.emplace_back(b, block);
  }
  const std::int64_t items = static_cast<std::int64_t>(blocks.size()) * cache.kv_heads;
  parallel_for(items, useful_threads(items * per_block * dim, threads), [&] {
    return [&, rows = std::vector<float>(static_cast<size_t>(per_block * dim)),
            scratch = std::vector<float>(static_cast<size_t>(dim))](std::int64_t item) mutable {
      const auto [b, block] = blocks[static_cast<size_t>(item / cache.kv_heads)];
      const auto head = static_cast<int>(item % cache.kv_heads);
      const HistoryEnds ends = history_ends(cache.rule, cache.tokens[b]);
      const int start = history_begin(cache, cache.tokens[b]) + block * per_block;
      const std::uint8_t* bytes = block_at(cache, layout.bytes, b, head, block);
      const std::int64_t row =
          (static_cast<std::int64_t>(b) * cache.kv_heads + head) * row_capacity +
          static_cast<std::int64_t>(block) * per_block;
      const auto count = [&](int end) { return std::clamp(end - start, 0, per_block); };
      const auto store = [&](void* out, int tokens) {
        for (int i = 0; i < tokens * dim; ++i) store_number(out, row * dim + i, type, rows[i]);
      };
      if (key != nullptr) {
        decode_block<Side::key>(ops, packed_keys(cache, layout, bytes),
                                spec != nullptr ? &spec->key : nullptr, head, count(ends.key),
                                rows.data(), scratch.data());
        store(key, count(ends.key));
      }
      if (value != nullptr) {
        decode_block<Side::value>(ops, packed_values(cache, layout, bytes),
                                  spec != nullptr ? &spec->value : nullptr, head, count(ends.value),
                                  rows.data(), scratch.data());
        store(value, count(ends.value));
      }
    };
  });
}

}  // namespace kvlab::kernels::cpu
