#pragma once

#include "fast_params.cuh"

/// From a tile of rotated (or untouched) numbers to stored codes and parameters.
namespace kvlab::kernels::cuda {

/// What the tile's numbers are to be multiplied by: 1/√d of a rotation and the token's norm, which
/// is stored.
__device__ __forceinline__ void token_factors(const FastJob& job, const Tile& tile, int first_token,
                                              int lane, float (&factor)[2]) {
  factor[0] = factor[1] = job.factor;
  if (job.side == Side::value || job.spec.scale == TokenScale::none) return;
  const Format& format = job.cache.format;
  float sums[2];
  square_sums(tile, sums);
  const int r = lane % 2;
  const int token = first_token + lane / 4 + 8 * r;
  const float norm = stored_scale(sqrtf((r ? sums[1] : sums[0]) * job.factor_square),
                                  format.norm_type, format.norm_inverse);
  if (lane % 4 < 2) {
    store_number(job.block + job.at.norm, norm_index(token), format.norm_type,
                 token < job.count ? norm : 0.0f);
  }
  const float own = format.norm_inverse ? factor[0] * norm : factor[0] / norm;
  factor[0] = __shfl_sync(kAllLanes, own, lane / 4 * 4);
  factor[1] = __shfl_sync(kAllLanes, own, lane / 4 * 4 + 1);
}

__device__ __forceinline__ void store_codes(const FastJob& job, int warp, int lane,
                                            const uint4& words) {
  std::uint8_t* codes = job.block + sections_of(job.at, job.side).codes;
  reinterpret_cast<uint4*>(codes + warp * tile_bytes(kFastDim, 2))[lane] = words;
}

template <bool kKey, bool kRotated, int kGroups>
__device__ __forceinline__ void encode_token_tile(const FastJob& job, Tile& tile, int warp,
                                                  int lane) {
  float factor[2];
  token_factors(job, tile, warp * kTile, lane, factor);
  const TokenGroups<kGroups, kRotated> groups(job, tile, warp * kTile, lane, factor);
  const auto most_code = static_cast<float>(largest_code(job.spec.grid));
  store_codes(job, warp, lane, packed<kKey, kRotated>(tile, most_code, groups));
}

/// A tile of keys or values whose groups run along channels.
template <bool kKey, bool kRotated>
__device__ __forceinline__ void encode_tokens(const FastJob& job, Tile& tile, int warp, int lane) {
  if (job.format.group == kFastDim) {
    encode_token_tile<kKey, kRotated, 1>(job, tile, warp, lane);
  } else {
    encode_token_tile<kKey, kRotated, 4>(job, tile, warp, lane);
  }
}

/// A tile of keys whose groups run along tokens; by all warps of the thread block.
template <bool kRotated, int kWarps>
__device__ __forceinline__ void encode_channels(const FastJob& job, Tile& tile, int warp, int lane,
                                                ChannelScratch<kWarps>& scratch) {
  if constexpr (kRotated) {
    float factor[2];
    token_factors(job, tile, warp * kTile, lane, factor);
#pragma unroll
    for (int i = 0; i < 8 * kFragments; ++i) {
      float& x = tile.x[i / 8][i / 4 % 2][i % 4];
      x = multiply(x, factor[i / 2 % 2]);
    }
  }
  channel_ranges(tile, warp, lane, scratch);
  __syncthreads();
  store_channel_groups<kWarps, kRotated>(job, scratch);
  __syncthreads();
  const Quantizer* of = scratch.of[warp * kTile / job.format.group];
  const int t = lane % 4;
  const auto quantizer = [of, t](int f, int j, int /*r*/, int l) {
    return of[32 * (f / 2) + 8 * t + 4 * (f % 2) + 2 * j + l];
  };
  const auto most_code = static_cast<float>(largest_code(job.spec.grid));
  store_codes(job, warp, lane, packed<true, kRotated>(tile, most_code, quantizer));
}

}  // namespace kvlab::kernels::cuda
