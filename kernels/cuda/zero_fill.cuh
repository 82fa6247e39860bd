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
  const Sections at = sections_of(job.at, job.side);
  const int size = size_of(job.format.params);
  for (int group = 0; group < channel_groups(format, job.format); ++group) {
    const int channel = job.format.axis == Axis::token ? group * job.format.group : 0;
    const int first = param_index(format, job.format, from, channel) * size;
    const int last = job.format.axis == Axis::token
                         ? first + (to - from) * size
                         : param_index(format, job.format, to, channel) * size;
    zero_bytes(block, at.scale + first, at.scale + last);
    if (stores_zero(job.format)) zero_bytes(block, at.zero + first, at.zero + last);
  }
  if (job.side == Side::key && format.norm != Norm::none) {
    zero_bytes(block, job.at.norm + from * size_of(format.norm_type),
               job.at.norm + to * size_of(format.norm_type));
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
