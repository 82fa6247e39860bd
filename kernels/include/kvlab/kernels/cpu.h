#pragma once

#include <cstdint>

#include "kvlab/kernels/cache.h"

/// The packed cache on the CPU. No call allocates more than a few blocks a thread, none keeps
/// state. Calls throw std::invalid_argument with a sentence where `refusal` or the arguments forbid
/// them.
namespace kvlab::kernels::cpu {

/// Which code runs: the best that this processor has, unless the environment variable KVLAB_CPU
/// names one.
enum class Isa { portable, avx2 };
Isa chosen_isa();

/// Copies the step's full-precision tokens to the sink and the recent ring, rounded to
/// format.window.
void write_windows(const CacheView& cache, const TokenSource& source, int step, int threads);

/// Quantizes the tokens that the step moves into the history, [ends(tokens − step), ends(tokens))
/// of each side, from `source` (its rows are the step's tokens) or, where source.key is null, from
/// the recent ring.
void encode(const CacheView& cache, const EncodeSpec& spec, const TokenSource& source, int step,
            int threads);

/// Attention of the last tokens' queries over sink, history and recent window.
void attend(const CacheView& cache, const AttendArgs& args, int threads);

/// Decoded tokens of the history as they stand on the codec's side of the transforms (still rotated
/// and scaled where `spec` is null), or in the space of the captured tensors. Tokens [s0, end of
/// the side) of each sequence go to rows 0 … of key and value, [batch, kv_heads, row_capacity, d]
/// of `type`; null: not wanted.
void dequantize(const CacheView& cache, const EncodeSpec* spec, void* key, void* value, Type type,
                std::int64_t row_capacity, int threads);

}  // namespace kvlab::kernels::cpu
