#pragma once

#include "kvlab/kernels/cuda.h"
#include "span.h"

/// What a thread block of the encoder works on: one unit of tokens of one side, sequence and head.
namespace kvlab::kernels::cuda {

struct Job {
  const CacheView& cache;
  const SideFormat& format;
  const SideEncode& spec;
  const TokenSource& source;
  Side side;
  int sequence;
  int first;  // token: of the step
  int start;  // token: of the history
  Span span;  // everything below in history indices
  int unit_begin;
  int unit_end;
  int from, to;     // of the unit, what the step stores
  int block_begin;  // of the block that holds the unit
  int block_end;
  Layout at;
};

__device__ inline Job make_job(const Layer& layer, const TokenSource& source, Side side,
                               int sequence, int unit, int step) {
  const CacheView& cache = layer.cache;
  const bool key = side == Side::key;
  const int tokens = cache.tokens[sequence];
  const int size = unit_tokens(cache.format);
  const int held = block_tokens(cache.format);
  const Span span = span_of(cache.rule, tokens, step, side);
  const int begin = (span.begin / size + unit) * size;
  const int end = begin + size;
  return {cache,
          key ? cache.format.key : cache.format.value,
          key ? layer.spec.key : layer.spec.value,
          source,
          side,
          sequence,
          step_begin(tokens, step),
          history_begin(cache, tokens),
          span,
          begin,
          end,
          begin > span.begin ? begin : span.begin,
          end < span.end ? end : span.end,
          begin / held * held,
          begin / held * held + held,
          layout_of(cache.format)};
}

__device__ inline std::uint8_t* block_of(const Job& job, int head) {
  return block_at(job.cache, job.at.bytes, job.sequence, head,
                  job.block_begin / block_tokens(job.cache.format));
}

/// Byte offsets of one side's sections.
struct Sections {
  int codes, scale, zero;
};

__device__ inline Sections sections_of(const Layout& at, Side side) {
  if (side == Side::key) return {at.key_codes, at.key_scale, at.key_zero};
  return {at.value_codes, at.value_scale, at.value_zero};
}

__device__ inline void store_params(const Job& job, std::uint8_t* block, int token, int channel,
                                    const GroupParams& params) {
  const Sections at = sections_of(job.at, job.side);
  const int index = param_index(job.cache.format, job.format, token, channel);
  store_number(block + at.scale, index, job.format.params, params.scale);
  if (stores_zero(job.format)) store_number(block + at.zero, index, job.format.params, params.zero);
}

template <int Dim>
__device__ Place code_place(Side side, int bits, int token, int channel) {
  const bool key = side == Side::key;
  switch (bits) {
    case 2:
      return key ? key_place(Dim, 2, token, channel) : value_place(Dim, 2, token, channel);
    case 4:
      return key ? key_place(Dim, 4, token, channel) : value_place(Dim, 4, token, channel);
    default:
      return key ? key_place(Dim, 8, token, channel) : value_place(Dim, 8, token, channel);
  }
}

}  // namespace kvlab::kernels::cuda
