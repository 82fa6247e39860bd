#pragma once

#include <cstdint>

#include "kvlab/kernels/format.h"
#include "kvlab/kernels/grid.h"
#include "kvlab/kernels/layout.h"
#include "kvlab/kernels/windows.h"

/// Plain structs that describe a packed cache and what is done to it. They own nothing; pointers
/// are host memory for kvlab::kernels::cpu and device memory for kvlab::kernels::cuda.
namespace kvlab::kernels {

/// One layer's cache of `batch` sequences. Tokens of a sequence: [0, s0) in the sink, s0 =
/// min(rule.sink, tokens); [s0, history_ends(rule, tokens)) in blocks; what lies behind in the
/// recent ring (each side its own end).
struct CacheView {
  Format format;
  WindowRule rule;
  int batch = 0;
  int kv_heads = 0;

  /// Pages of kv_heads blocks each: block i of head h of sequence b begins at
  /// pool + (block_table[b · table_stride + i] · kv_heads + h) · layout_of(format).bytes.
  /// Stride 0: one row for all sequences.
  std::uint8_t* pool = nullptr;
  const std::int32_t* block_table = nullptr;
  std::int64_t table_stride = 0;

  /// 16-bit rows [batch, kv_heads, capacity, dim] of type format.window; token τ of the ring is row
  /// τ % capacity. Batch strides in elements (0: shared by all sequences); heads and rows are
  /// contiguous.
  std::uint16_t* sink_key = nullptr;
  std::uint16_t* sink_value = nullptr;
  std::uint16_t* recent_key = nullptr;
  std::uint16_t* recent_value = nullptr;
  int sink_capacity = 0;
  int recent_capacity = 0;
  std::int64_t sink_stride = 0;
  std::int64_t recent_stride = 0;

  /// Tokens held, the current step's included: int32 [batch]. The only state: everything else
  /// follows from it.
  const std::int32_t* tokens = nullptr;

  /// Values of codes where a side is Zero::codebook.
  float key_levels[4] = {0, 0, 0, 0};
  float value_levels[4] = {0, 0, 0, 0};
};

KVLAB_HD inline int history_begin(const CacheView& cache, int tokens) {
  return cache.rule.sink < tokens ? cache.rule.sink : tokens;
}

/// The block of the cache that holds token `index` of the history (0 is the first token behind the
/// sink).
KVLAB_HD inline std::uint8_t* block_at(const CacheView& cache, int block_bytes, int sequence,
                                       int head, int block) {
  const std::int64_t page = cache.block_table[sequence * cache.table_stride + block];
  return cache.pool + (page * cache.kv_heads + head) * block_bytes;
}

/// y = x·R on row vectors of d channels.
struct Rotation {
  enum class Kind : std::uint8_t { none, hadamard, dense };
  Kind kind = Kind::none;
  bool per_head = false;  // dense: one matrix a KV head, else one for all
  const float* matrix =
      nullptr;  // dense: row-major [1 or kv_heads, d, d], 16-byte aligned on a GPU
};

/// How a token's norm is taken (contract section 4.1).
enum class TokenScale : std::uint8_t { none, l2_heads, l2_head, max_head, mean_abs_head };

enum class Clip : std::uint8_t { none, row, group, calibrated };

/// How one side of a cache is quantized: ((x − centre)·R)/scale, clipped, then on the grid.
struct SideEncode {
  Grid grid;
  Rotation rotation;
  const float* center = nullptr;  // [kv_heads, d], or none
  TokenScale scale = TokenScale::none;
  bool scale_first = false;  // order: scale_rotate
  Clip clip = Clip::none;
  int clip_index = 0;                 // row and group: index of the threshold in ascending |x|
  const float* thresholds = nullptr;  // calibrated: [kv_heads]
};

struct EncodeSpec {
  SideEncode key;
  SideEncode value;
};

/// Tokens to be stored, [batch, kv_heads, n, d] with strides in elements; row 0 of a sequence is
/// its first new token.
struct TokenSource {
  const void* key = nullptr;
  const void* value = nullptr;
  Type type = Type::bf16;
  std::int64_t batch_stride = 0;
  std::int64_t head_stride = 0;
  std::int64_t token_stride = 0;
};

/// The number of tokens that a step added, where it is all a sequence holds.
inline constexpr int kAllTokens = -1;

/// First of the tokens that a step added.
KVLAB_HD constexpr int step_begin(int tokens, int step) {
  return step == kAllTokens ? 0 : tokens > step ? tokens - step : 0;
}

/// Queries of the last `query_tokens` tokens of each sequence and where results go.
struct AttendArgs {
  const void* query = nullptr;  // [batch, query_tokens, q_heads, d], contiguous
  Type query_type = Type::bf16;
  int query_tokens = 1;     // 1 … 8; query i of n sees tokens up to tokens − n + i
  int q_heads = 0;          // a multiple of kv_heads, at most 16 to one
  float scale = 0;          // of logits, 1/√d
  Rotation key_rotation;    // applied to queries against the history: q·R
  Rotation value_rotation;  // undone on the history's part of the output; none where it is absorbed
  const float* key_center = nullptr;  // [kv_heads, d]
  void* output = nullptr;             // [batch, query_tokens, q_heads, d]
  Type output_type = Type::bf16;
  float* log_sum_exp = nullptr;  // [batch, query_tokens, q_heads], natural logarithm; or not wanted
};

}  // namespace kvlab::kernels
