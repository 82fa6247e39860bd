#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "cpu/check.h"
#include "cpu/parallel.h"
#include "cpu/windows_rows.h"
#include "kvlab/kernels/cpu.h"

namespace kvlab::kernels::cpu {
namespace {

void copy_row(const void* from, Type type, std::uint16_t* to, Type window, int dim) {
  if (type == window) {
    std::memcpy(to, from, static_cast<size_t>(dim) * sizeof *to);
    return;
  }
  for (int c = 0; c < dim; ++c) store_number(to, c, window, load_number(from, c, type));
}

}  // namespace

void write_windows(const CacheView& cache, const TokenSource& source, int step, int threads) {
  check_cache(cache);
  check_threads(threads);
  if (source.key == nullptr || source.value == nullptr) {
    throw std::invalid_argument("the tokens to be stored are missing");
  }
  const Format& format = cache.format;
  const auto worker = [&](std::int64_t item) {
    const auto sequence = static_cast<int>(item / cache.kv_heads);
    const auto head = static_cast<int>(item % cache.kv_heads);
    const int tokens = cache.tokens[sequence];
    const int first = step_begin(tokens, step);
    const auto copy = [&](const WindowRows& keys, const WindowRows& values, int token) {
      const int index = token - first;
      copy_row(source_row(source, source.key, sequence, head, index), source.type, keys[token],
               format.window, format.dim);
      copy_row(source_row(source, source.value, sequence, head, index), source.type, values[token],
               format.window, format.dim);
    };
    const int begin = history_begin(cache, tokens);
    if (first < begin) {
      const WindowRows keys = sink_rows(cache, cache.sink_key, sequence, head);
      const WindowRows values = sink_rows(cache, cache.sink_value, sequence, head);
      for (int token = first; token < begin; ++token) copy(keys, values, token);
    }
    // Of a long step only the last tokens fit the ring; what is before them goes straight to the
    // history.
    const WindowRows keys = recent_rows(cache, cache.recent_key, sequence, head);
    const WindowRows values = recent_rows(cache, cache.recent_value, sequence, head);
    for (int token = std::max({first, begin, tokens - cache.recent_capacity}); token < tokens;
         ++token) {
      copy(keys, values, token);
    }
  };
  const std::int64_t items = static_cast<std::int64_t>(cache.batch) * cache.kv_heads;
  const std::int64_t rows = step == kAllTokens ? cache.recent_capacity : step;
  parallel_for(items, useful_threads(items * rows * format.dim, threads), [&] { return worker; });
}

}  // namespace kvlab::kernels::cpu
