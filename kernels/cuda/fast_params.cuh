#pragma once

#include "encode_job.cuh"
#include "fast_clip.cuh"
#include "fast_ranges.cuh"

/// Parameters of a tile's groups: what is stored, and the quantizers that follow.
namespace kvlab::kernels::cuda {

/// What the fast encoder knows of a side.
struct FastJob {
  const Format& format;
  const SideFormat& stored;
  const SideEncode& spec;
  Side side;
  Layout at;
  float factor;  // the tile's numbers times this are the rotated ones
  float factor_square;
};

__device__ __forceinline__ FastJob make_fast_job(const Format& format, const EncodeSpec& spec,
                                                 Side side, float factor, float factor_square) {
  const bool key = side == Side::key;
  return {format,
          key ? format.key : format.value,
          key ? spec.key : spec.value,
          side,
          layout_of(format),
          factor,
          factor_square};
}

/// The largest code: of 2 bits.
__device__ __forceinline__ float most_code_of(const FastJob& job) {
  return job.spec.grid.zero == Zero::none ? 2.0f : 3.0f;
}

/// Where a row of a tile is stored.
struct RowPlace {
  std::uint8_t* block;
  int token;    // of the block
  bool there;   // there is such a token; else zeros are stored
  bool writes;  // the place is the step's to write
};

/// One of two by value: chosen by address they would have to lie in memory.
__device__ __forceinline__ RowPlace chosen(const RowPlace (&places)[2], int r) {
  return {r ? places[1].block : places[0].block, r ? places[1].token : places[0].token,
          r ? places[1].there : places[0].there, r ? places[1].writes : places[0].writes};
}

/// How a number becomes a code, in units of kCodeUnit: of rotated numbers by one multiply-add,
/// which may err at ties of the true quotient; of numbers that are exact by comparing with what the
/// reference's rounded quotient would be compared with.
struct Quantizer {
  float scale;   // rotated: codes per unit; else the stored scale, infinite where all codes are 0
  float offset;  // rotated: of codes; else the stored zero
};

/// The quantizer of a group whose numbers are `factor` times those in the tile.
template <bool kRotated>
__device__ __forceinline__ Quantizer quantizer_of(const Grid& grid, const GroupParams& params,
                                                  float factor) {
  if constexpr (!kRotated)
    return {params.flat ? __uint_as_float(0x7f800000u) : params.scale, params.zero};
  const bool empty = params.flat && !(grid.zero == Zero::offset && grid.integer_zero);
  if (empty && grid.zero != Zero::none) return {0.0f, 0.0f};
  const float inverse = __fdividef(1.0f, params.scale);
  const float shift = grid.zero == Zero::value  ? -params.zero * inverse
                      : grid.zero == Zero::none ? static_cast<float>(symmetric_reach(grid.bits))
                                                : params.zero;
  return {factor * inverse * kCodeUnit, shift * kCodeUnit};
}

template <bool kRotated>
__device__ __forceinline__ Quantizer no_codes() {
  return {kRotated ? 0.0f : __uint_as_float(0x7f800000u), 0.0f};
}

/// What packing takes for the code of x.
template <bool kRotated>
__device__ __forceinline__ float code_number(const Quantizer& q, float x) {
  if constexpr (kRotated) {
    return fmaf(x, q.scale, q.offset);
  } else {
    // With a scale of at most 16 bits (k + ½)·scale is exact in float32, and x − zero lies on the
    // same side of it as their rounded quotient of k + ½; half-even takes 0.5 and 2.5 down and 1.5
    // up.
    const float u = add(x, -q.offset);
    return (u > 0.5f * q.scale ? kCodeUnit : 0.0f) + (u >= 1.5f * q.scale ? kCodeUnit : 0.0f) +
           (u > 2.5f * q.scale ? kCodeUnit : 0.0f);
  }
}

/// Whether packing alone keeps to the codes of a grid for all numbers of a group from lo to hi: it
/// takes what is negative to 0, but not what is too large to the largest code, nor NaN to 0.
template <bool kRotated>
__device__ __forceinline__ bool keeps_codes(const Quantizer& q, float most_code, float lo,
                                            float hi) {
  if constexpr (!kRotated) return true;
  return code_number<true>(q, hi) < (most_code + 0.4f) * kCodeUnit &&
         code_number<true>(q, lo) > -INFINITY;
}

/// A code number within the codes of a grid, NaN as 0.
__device__ __forceinline__ float limited(float number, float most_code) {
  return __saturatef(number * __fdividef(1.0f / kCodeUnit, most_code)) * (most_code * kCodeUnit);
}

/// Turns the tile's numbers into code numbers: `quantizer(i)` tells how for x[i]. `keeps`: of all
/// groups of the lane.
template <bool kRotated, class Quantizers>
__device__ __forceinline__ void make_code_numbers(Tile& tile, bool keeps, float most_code,
                                                  const Quantizers& quantizer) {
#pragma unroll
  for (int i = 0; i < 8 * kFragments; ++i) {
    tile.x[i] = code_number<kRotated>(quantizer(i), tile.x[i]);
  }
  if constexpr (kRotated) {
    if (__all_sync(kAllLanes, keeps)) return;
#pragma unroll
    for (int i = 0; i < 8 * kFragments; ++i) tile.x[i] = limited(tile.x[i], most_code);
  }
}

/// x / 3 of a finite x or NaN, rounded once, in a third of a division's instructions.
__device__ __forceinline__ float third(float x) {
  constexpr float kThird = 1.0f / 3.0f;
  const float near = multiply(x, kThird);
  return __fmaf_rn(__fmaf_rn(-3.0f, near, x), kThird, near);
}

/// store_group of the usual kind, fp16 scales and zeros without a clip, in a third of the
/// instructions.
template <bool kRotated>
__device__ __forceinline__ Quantizer store_usual_group(const FastJob& job, const RowPlace& place,
                                                       int index, bool stores, float lo, float hi,
                                                       float factor) {
  const auto within = [](float x) {
    constexpr float kLimit = largest(Type::f16);
    return least(most(x, -kLimit), kLimit);
  };
  lo = within(multiply(lo, factor));
  hi = within(multiply(hi, factor));
  const std::uint16_t scale_bits = to_f16(third(add(hi, -lo)));
  const std::uint16_t zero_bits = to_f16(lo);
  if (stores && place.writes) {
    const Sections at = sections_of(job.at, job.side);
    reinterpret_cast<std::uint16_t*>(place.block + at.scale)[index] =
        place.there ? scale_bits : std::uint16_t{0};
    reinterpret_cast<std::uint16_t*>(place.block + at.zero)[index] =
        place.there ? zero_bits : std::uint16_t{0};
  }
  const float scale = from_f16(scale_bits);
  const float zero = from_f16(zero_bits);
  const bool codes = place.there && hi != lo && scale != 0.0f;
  if constexpr (!kRotated) return {codes ? scale : __uint_as_float(0x7f800000u), zero};
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(scale));
  inverse = codes ? inverse * kCodeUnit : 0.0f;
  return {factor * inverse, -zero * inverse};
}

/// Parameters of a range of tile numbers, stored as number `index` (layout.h, param_index) of the
/// place's block if `stores`; zeros where there is no such token.
template <bool kRotated>
__device__ __forceinline__ Quantizer store_group(const FastJob& job, const RowPlace& place,
                                                 int index, bool stores, float lo, float hi,
                                                 float factor) {
  const Grid& grid = job.spec.grid;
  if (grid.zero == Zero::value && grid.params == Type::f16 && grid.range_ratio == 1.0f) {
    return store_usual_group<kRotated>(job, place, index, stores, lo, hi, factor);
  }
  GroupParams params{0.0f, 0.0f, true};
  if (place.there) params = params_of(grid, multiply(lo, factor), multiply(hi, factor));
  if (stores && place.writes) {
    const Sections at = sections_of(job.at, job.side);
    const Type type = job.stored.params;
    store_number(place.block + at.scale, index, type, params.scale);
    if (stores_zero(job.stored)) store_number(place.block + at.zero, index, type, params.zero);
  }
  return place.there ? quantizer_of<kRotated>(grid, params, factor) : no_codes<kRotated>();
}

__device__ __forceinline__ Quantizer from_lane(const Quantizer& mine, int lane) {
  return {__shfl_sync(kAllLanes, mine.scale, lane), __shfl_sync(kAllLanes, mine.offset, lane)};
}

/// Groups along channels: stores the parameters and makes code numbers. `factor[row]`: what the
/// tile's numbers are to be multiplied by. kClip: there may be thresholds of tokens.
template <bool kRotated, bool kClip>
__device__ __forceinline__ void quantize_tokens(const FastJob& job, Tile& tile,
                                                const RowPlace (&places)[2], int lane,
                                                const float (&factor)[2]) {
  const float most_code = most_code_of(job);
  const int quad = lane / 4 * 4;
  const int t = lane % 4;
  float threshold[2] = {INFINITY, INFINITY};
  if constexpr (kClip) {
    if (job.spec.clip != Clip::none) {
      threshold[0] = order_statistic_of_row<0>(tile, job.spec.clip_index);
      threshold[1] = order_statistic_of_row<1>(tile, job.spec.clip_index);
    }
  }
  bool keeps = true;
  bool clips_by_codes = true;  // what lies beyond a threshold gets the threshold's code anyway
  const auto store = [&](const RowPlace& place, int index, bool stores, float lo, float hi,
                         float limit, float by) {
    if constexpr (!kClip) {
      const Quantizer mine = store_group<kRotated>(job, place, index, stores, lo, hi, by);
      keeps &= keeps_codes<kRotated>(mine, most_code, lo, hi);
      return mine;
    } else {
      const float from = most(lo, -limit);
      const float to = least(hi, limit);
      const Quantizer mine = store_group<kRotated>(job, place, index, stores, from, to, by);
      keeps &= keeps_codes<kRotated>(mine, most_code, lo, hi);
      clips_by_codes &= from == lo || code_number<kRotated>(mine, from) < 0.4f * kCodeUnit;
      clips_by_codes &=
          to == hi || code_number<kRotated>(mine, to) > (most_code - 0.4f) * kCodeUnit;
      return mine;
    }
  };
  const auto make = [&](const auto& quantizer) {
    if (kClip && !__all_sync(kAllLanes, clips_by_codes)) clamp_tokens(tile, threshold);
    make_code_numbers<kRotated>(tile, keeps, most_code, quantizer);
  };
  if (job.stored.group == kFastDim) {
    const TwoRanges range = two_ranges([&](auto& found) { gather_rows(tile, lane, found); });
    const RowPlace place = chosen(places, t % 2);
    const Quantizer mine =
        store(place, token_slot(place.token), t < 2, range.lo[0], range.hi[0],
              t % 2 ? threshold[1] : threshold[0], t % 2 ? factor[1] : factor[0]);
    const Quantizer of[2] = {from_lane(mine, quad), from_lane(mine, quad + 1)};
    make([&of](int i) { return of[i / 2 % 2]; });
    return;
  }
  // Four pieces of 32 channels with a lane each; two of them may be one group.
  TwoRanges range = two_ranges([&](auto& found) { gather_pieces(tile, lane, found); });
  const bool halves = job.stored.group == 64;
  if (halves) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      range.lo[r] = least(range.lo[r], __shfl_xor_sync(kAllLanes, range.lo[r], 1));
      range.hi[r] = most(range.hi[r], __shfl_xor_sync(kAllLanes, range.hi[r], 1));
    }
  }
  const int first = (halves ? t / 2 : t) * block_tokens(job.format);
  Quantizer of[4][2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const Quantizer mine = store(places[r], first + places[r].token, !halves || t % 2 == 0,
                                 range.lo[r], range.hi[r], threshold[r], factor[r]);
#pragma unroll
    for (int piece = 0; piece < 4; ++piece) of[piece][r] = from_lane(mine, quad + piece);
  }
  make([&of](int i) { return of[i / 16][i / 2 % 2]; });
}

}  // namespace kvlab::kernels::cuda
