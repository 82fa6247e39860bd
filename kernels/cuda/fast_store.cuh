#pragma once

#include "fast_params.cuh"

/// From a tile of rotated (or untouched) numbers to stored codes and parameters.
namespace kvlab::kernels::cuda {

__device__ __forceinline__ float root_fast(float x) {
  float y;
  asm("sqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// The L2 norm of row r as it is stored: made of the tile, or read where it runs over all heads and
/// store_norms was there before.
template <bool kRotated>
__device__ __forceinline__ float row_norm(const FastJob& job, const Tile& tile,
                                          const RowPlace& place, int r) {
  const Format& format = job.format;
  if (job.spec.scale == TokenScale::l2_heads) {
    if (!place.there) return 1.0f;
    // Adding 0 waits for the number here and not behind the branch, where other loads are on their
    // way.
    return add(load_number(place.block + job.at.norm, norm_index(place.token), format.norm_type),
               0.0f);
  }
  if constexpr (kRotated) {
    float sums[2];
    square_sums(tile, sums);
    return stored_scale(root_fast((r ? sums[1] : sums[0]) * job.factor_square), format.norm_type,
                        format.norm_inverse);
  } else {
    double sums[2];
    square_sums(tile, sums);
    return stored_scale(sqrt(r ? sums[1] : sums[0]), format.norm_type, format.norm_inverse);
  }
}

/// Takes the tokens' norms out of the tile and stores them. What then is left to multiply the
/// numbers by, of both rows: 1/√d of a rotation, and the norm too, but untouched numbers are
/// divided here and now, as their codes must be exact.
template <bool kRotated>
__device__ __forceinline__ void token_factors(const FastJob& job, Tile& tile,
                                              const RowPlace (&places)[2], int lane,
                                              float (&factor)[2]) {
  factor[0] = factor[1] = job.factor;
  if (job.side == Side::value || job.spec.scale == TokenScale::none) return;
  const Format& format = job.format;
  const int r = lane % 2;
  const RowPlace place = chosen(places, r);
  const float norm = row_norm<kRotated>(job, tile, place, r);
  if (lane % 4 < 2 && place.writes) {
    store_number(place.block + job.at.norm, norm_index(place.token), format.norm_type,
                 place.there ? norm : 0.0f);
  }
  const int quad = lane / 4 * 4;
  if constexpr (kRotated) {
    const float own = format.norm_inverse ? factor[0] * norm : __fdividef(factor[0], norm);
#pragma unroll
    for (int i = 0; i < 2; ++i) factor[i] = __shfl_sync(kAllLanes, own, quad + i);
  } else {
    float norms[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) norms[i] = __shfl_sync(kAllLanes, norm, quad + i);
#pragma unroll
    for (int i = 0; i < 8 * kFragments; ++i) {
      float& x = tile.x[i / 8][i / 4 % 2][i % 4];
      const float by = norms[i / 2 % 2];
      x = format.norm_inverse ? multiply(x, by) : divide(x, by);
    }
  }
}

/// Groups along channels: stores norms and parameters, then stores(most_code, groups) the codes.
template <bool kRotated, class Stores>
__device__ __forceinline__ void encode_tokens(const FastJob& job, Tile& tile,
                                              const RowPlace (&places)[2], int lane,
                                              const Stores& stores) {
  float factor[2];
  token_factors<kRotated>(job, tile, places, lane, factor);
  const auto most_code = static_cast<float>(largest_code(job.spec.grid));
  if (job.stored.group == kFastDim) {
    stores(most_code, TokenGroups<1, kRotated>(job, tile, places, lane, factor));
  } else {
    stores(most_code, TokenGroups<4, kRotated>(job, tile, places, lane, factor));
  }
}

/// A tile of keys whose groups run along tokens; by kWarps warps that meet at `barrier`. `from`,
/// `to`, `fresh`: as in store_channel_groups.
template <bool kRotated, int kWarps, class Stores>
__device__ __forceinline__ void encode_channels(const FastJob& job, Tile& tile,
                                                const RowPlace (&places)[2], int from, int to,
                                                bool fresh, int thread, int barrier,
                                                ChannelScratch<kWarps>& scratch,
                                                const Stores& stores) {
  const int warp = thread / 32;
  const int lane = thread % 32;
  const auto meet = [barrier] {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(32 * kWarps) : "memory");
  };
  float factor[2];
  token_factors<kRotated>(job, tile, places, lane, factor);
  if constexpr (kRotated) {
#pragma unroll
    for (int i = 0; i < 8 * kFragments; ++i) {
      float& x = tile.x[i / 8][i / 4 % 2][i % 4];
      x = multiply(x, factor[i / 2 % 2]);
    }
  }
  channel_ranges(tile, warp, lane, scratch);
  meet();
  store_channel_groups<kWarps, kRotated>(job, places[0].block, from, to, fresh, thread, scratch);
  meet();
  // Quantizers of channels 2j and 2j + 1 are one load.
  const Quantizer* of = scratch.of[warp * kTile / job.stored.group] + 8 * (lane % 4);
  float4 pairs[kFragments][2];
#pragma unroll
  for (int i = 0; i < 2 * kFragments; ++i) {
    const int f = i / 2;
    pairs[f][i % 2] =
        *reinterpret_cast<const float4*>(of + 32 * (f / 2) + 4 * (f % 2) + 2 * (i % 2));
  }
  const auto quantizer = [&pairs](int f, int j, int /*r*/, int l) {
    const float4& two = pairs[f][j];
    return l ? Quantizer{two.z, two.w} : Quantizer{two.x, two.y};
  };
  stores(static_cast<float>(largest_code(job.spec.grid)), quantizer);
}

}  // namespace kvlab::kernels::cuda
