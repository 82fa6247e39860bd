#pragma once

#include "fast_norms.cuh"
#include "fast_work.cuh"

/// From a tile by tokens to stored codes and parameters.
namespace kvlab::kernels::cuda {

/// Zeroes what lies behind the norms; the keys' team does it.
template <int kWarps>
__device__ __forceinline__ void zero_padding(const FastJob& job, std::uint8_t* block, int thread) {
  using T = Team<kWarps>;
  const int norms = job.format.norm == Norm::none ? 0 : T::tokens * size_of(job.format.norm_type);
  for (int at = job.at.norm + norms + 4 * thread; at < job.at.bytes; at += 4 * T::threads) {
    *reinterpret_cast<std::uint32_t*>(block + at) = 0;
  }
}

/// Zeroes a side of a block that its first token opens; by the four lanes of the row.
__device__ __forceinline__ void open_block(const FastJob& job, const RowPlace& place, int lane) {
  const auto zero = [&](int from, int to) {
    for (int at = from + 16 * (lane % 4); at < to; at += 64) {
      *reinterpret_cast<uint4*>(place.block + at) = uint4{};
    }
  };
  const bool key = job.side == Side::key;
  const int codes = sections_of(job.at, job.side).codes;
  zero(codes, codes + code_bytes(job.format, job.stored));
  zero(key ? job.at.key_scale : job.at.value_scale, key ? job.at.value_scale : job.at.norm);
  if (!key) return;
  // A norm over all heads is there before; its bytes are the first lane's.
  const bool keeps = job.spec.scale == TokenScale::l2_heads && lane % 4 == 0;
  const Type type = job.format.norm_type;
  std::uint8_t* norms = place.block + job.at.norm;
  const float norm = keeps ? load_number(norms, norm_index(place.token), type) : 0.0f;
  zero(job.at.norm, job.at.bytes);
  if (keeps) store_number(norms, norm_index(place.token), type, norm);
}

/// Puts 2-bit codes of one token among those of the other tokens of its tile.
__device__ __forceinline__ void merge_codes(const FastJob& job, const RowPlace& place, int lane,
                                            std::uint32_t mask, int shift, const uint4& words) {
  auto* to = reinterpret_cast<uint4*>(place.block + sections_of(job.at, job.side).codes +
                                      place.token / kTile * tile_bytes(kFastDim, 2)) +
             lane;
  uint4 old = *to;
  const auto merged = [=](std::uint32_t was, std::uint32_t is) {
    return (was & ~(mask << shift)) | is << shift;
  };
  *to = make_uint4(merged(old.x, words.x), merged(old.y, words.y), merged(old.z, words.z),
                   merged(old.w, words.w));
}

/// The tokens' codes into blocks of their own.
template <bool kKey>
__device__ __forceinline__ void store_rows(const FastJob& job, const Tile& tile,
                                           const RowPlace (&places)[2], int lane) {
  const int t = lane % 4;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const RowPlace& place = places[r];
    const int k = place.token % kTile;
    if constexpr (kKey) {
      const uint4 words = packed_row<true>(tile, r, 0);
      if (place.writes) merge_codes(job, place, k % 8 * 4 + t, 0x33333333u, k / 8 * 2, words);
    } else {
#pragma unroll
      for (int l = 0; l < 2; ++l) {
        const uint4 words = packed_row<false>(tile, r, l);
        if (place.writes) {
          merge_codes(job, place, (2 * t + l) * 4 + k % 8 / 2, 0x0f0fu, k % 2 * 16 + k / 8 * 4,
                      words);
        }
      }
    }
  }
}

template <bool kKey>
__device__ __forceinline__ void store_tile(const FastJob& job, const Tile& tile,
                                           const RowPlace (&places)[2], int lane) {
  const uint4 words = packed<kKey>(tile);
  if (!places[0].writes) return;  // of tiles, all rows or none
  std::uint8_t* codes = places[0].block + sections_of(job.at, job.side).codes;
  reinterpret_cast<uint4*>(codes + places[0].token / kTile * tile_bytes(kFastDim, 2))[lane] = words;
}

/// A tile by tokens. `factor`: of row lane % 2, what its numbers are to be multiplied by, or its
/// norm; `normed`: it is not job.factor. kSingle: rows go to blocks of their own.
template <bool kRotated, bool kSingle, bool kClip>
__device__ __forceinline__ void encode_tokens(const FastJob& job, Tile& tile,
                                              const RowPlace (&places)[2], bool normed,
                                              float factor, int lane) {
  float factors[2] = {job.factor, job.factor};
  if (normed) {
    const int quad = lane / 4 * 4;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float by = __shfl_sync(kAllLanes, factor, quad + r);
      if constexpr (kRotated) {
        factors[r] = by;
      } else {
#pragma unroll
        for (int i = 0; i < 4 * kFragments; ++i) {
          float& x = tile.at(i / 4, i / 2 % 2, r, i % 2);
          x = without_norm(job, x, by);
        }
      }
    }
  }
  quantize_tokens<kRotated, kClip>(job, tile, places, lane, factors);
  const auto store = [&]<bool kKey>(std::bool_constant<kKey>) {
    if constexpr (kSingle) {
      store_rows<kKey>(job, tile, places, lane);
    } else {
      store_tile<kKey>(job, tile, places, lane);
    }
  };
  if (job.side == Side::key) {
    store(std::true_type{});
  } else {
    store(std::false_type{});
  }
}

}  // namespace kvlab::kernels::cuda
