#pragma once

#include "encode_job.cuh"

/// Storage that holds no token yet is zero, so that no kernel that reads whole blocks meets a NaN
/// there.
namespace kvlab::kernels::cuda {

/// Zeroes bytes [from, to) of a block by all threads of the thread block; both are even.
__device__ inline void zero_bytes(std::uint8_t* block, int from, int to) {
  for (int i = from + 2 * static_cast<int>(threadIdx.x); i < to;
       i += 2 * static_cast<int>(blockDim.x)) {
    *reinterpret_cast<std::uint16_t*>(block + i) = 0;
  }
}

/// Zeroes the parameters of tokens [from, to) of a block, both multiples of the groups of tokens.
__device__ inline void zero_params(const Job& job, std::uint8_t* block, int from, int to) {
  const Format& format = job.cache.format;
  const bool by_token = job.format.axis == Axis::token;
  const int rows = by_token ? to - from : (to - from) / job.format.group;
  const int columns = by_token ? channel_groups(format, job.format) : format.dim;
  for (int i = threadIdx.x; i < rows * columns; i += blockDim.x) {
    const int token = from + i / columns * (by_token ? 1 : job.format.group);
    const int channel = i % columns * (by_token ? job.format.group : 1);
    store_params(job, block, token, channel, {0.0f, 0.0f, false});
  }
  if (job.side == Side::value || format.norm == Norm::none) return;
  for (int token = from + threadIdx.x; token < to; token += blockDim.x) {
    store_number(block + job.at.norm, norm_index(token), format.norm_type, 0.0f);
  }
}

/// Zeroes everything of one side in a block: for keys the norms and the padding too.
__device__ inline void zero_side(const Job& job, std::uint8_t* block, Side side) {
  const Layout& at = job.at;
  if (side == Side::key) {
    zero_bytes(block, at.key_codes, at.value_codes);
    zero_bytes(block, at.key_scale, at.value_scale);
    zero_bytes(block, at.norm, at.bytes);
  } else {
    zero_bytes(block, at.value_codes, at.key_scale);
    zero_bytes(block, at.value_scale, at.norm);
  }
}

/// What the thread block of a block's last stored unit zeroes when the step touches the block
/// first: the tokens behind the unit, the padding, and the other side where the step leaves it
/// empty.
__device__ inline void zero_rest(const Job& job, std::uint8_t* block) {
  const bool last = job.to == job.span.end || job.unit_end == job.block_end;
  if (!last || job.span.begin > job.block_begin) return;
  const Format& format = job.cache.format;
  if (job.unit_end < job.block_end) {
    const int from = job.unit_end - job.block_begin;
    const int codes = sections_of(job.at, job.side).codes;
    zero_bytes(block, codes + from / kTile * tile_bytes(format.dim, job.format.bits),
               codes + code_bytes(format, job.format));
    zero_params(job, block, from, block_tokens(format));
  }
  if (job.span.other_end <= job.block_begin) {
    zero_side(job, block, job.side == Side::key ? Side::value : Side::key);
  }
  if (job.side == Side::key) {
    const int norms =
        format.norm == Norm::none ? 0 : block_tokens(format) * size_of(format.norm_type);
    zero_bytes(block, job.at.norm + norms, job.at.bytes);
  }
}

}  // namespace kvlab::kernels::cuda
