#pragma once

#include <ATen/ATen.h>

#include <string>
#include <vector>

#include "cache/engine.h"
#include "cache/packed_bytes.h"
#include "cache/packed_format.h"
#include "cache/packed_spec.h"

namespace kvlab::cache {

/// One layer's key-value cache of several sequences, held in packed form by the kernels of a
/// backend: what decoding would use. Tensors go in and come out on the host. All memory is taken
/// when it is made.
class KvCache {
 public:
  struct Shape {
    int64_t batch = 1;
    int64_t kv_heads = 1;
    int64_t head_dim = 128;
    int64_t capacity = 0;  // tokens of a sequence
    DType dtype = DType::bf16;
  };

  /// Tokens of one append, and of the queries of one attend.
  static constexpr int64_t kMostStep = 8;

  /// backend: "cpu" or "cuda". Throws Unsupported where it cannot hold the recipe, Error where it
  /// is not there.
  KvCache(const method::Recipe& recipe, const calibrate::Prepared& prepared, const Shape& shape,
          const std::string& backend);

  /// The first tokens of all sequences: k, v [B, Hkv, n, d], converted to the cache's type.
  /// lengths: how many of them each sequence has (0 … n); all where empty. Replaces what was held.
  void prefill(const at::Tensor& k, const at::Tensor& v, const std::vector<int64_t>& lengths = {});

  /// The next n ≤ kMostStep tokens of every sequence: k, v [B, Hkv, n, d].
  void append(const at::Tensor& k, const at::Tensor& v);

  struct Attended {
    at::Tensor output;       // float32 [B, Hq, n, d]
    at::Tensor log_sum_exp;  // float32 [B, Hq, n] of the logits q·k/√d; undefined unless asked for
  };

  /// Attention of queries of the last n ≤ kMostStep tokens: q [B, Hq, n, d]; query i sees tokens
  /// up to its own, through the cache as it stands.
  Attended attend(const at::Tensor& q, bool log_sum_exp = false) const;

  struct Tokens {
    at::Tensor k, v;
  };

  /// All tokens as attention reads them, in the space of the captured tensors: float32 [B, Hkv,
  /// longest, d]; rows beyond a sequence's tokens are 0.
  Tokens dequantize() const;

  /// Those of one head of one sequence, [tokens, d].
  Tokens dequantize(int64_t sequence, int64_t head) const;

  /// Work that can be timed: what `prefill` of these tokens does after it has placed them, and what
  /// `attend` does once it is planned. The cache must outlive it.
  Work prefill_work(const at::Tensor& k, const at::Tensor& v);
  Work attend_work(const at::Tensor& q) const;

  /// Tokens of each sequence.
  const std::vector<int64_t>& tokens() const { return tokens_; }

  /// What is held now. Blocks count from the first token in them on; windows are held whole.
  PackedBytes bytes() const;

  const Engine& engine() const { return *engine_; }

 private:
  /// An attend with its memory.
  struct Attention {
    Memory query, output, log_sum_exp;
    std::vector<int64_t> sizes;  // of the query as kernels take it, [B, n, Hq, d]
    Work work;
  };

  Work storing(const at::Tensor& k, const at::Tensor& v, int step) const;
  Attention attention(const at::Tensor& q, bool log_sum_exp) const;
  kernels::CacheView head_view(int64_t sequence, int64_t head) const;
  at::Tensor head_tokens(const at::Tensor& history, const kernels::CacheView& view, int64_t tokens,
                         bool keys) const;
  void set_tokens(std::vector<int64_t> tokens);
  at::Tensor captured(const at::Tensor& x, const char* name, int64_t most) const;
  int64_t longest() const;

  Shape shape_;
  PackedFormat packed_;
  std::shared_ptr<const Engine> engine_;
  PackedSpec tensors_;
  kernels::EncodeSpec spec_;
  WindowRows rows_;
  Memory pool_, table_, head_table_, held_, sink_key_, sink_value_, recent_key_, recent_value_;
  kernels::CacheView view_;
  std::vector<int64_t> tokens_;
};

}  // namespace kvlab::cache
