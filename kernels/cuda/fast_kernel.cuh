#pragma once

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "check.h"
#include "encode_fast.cuh"
#include "fast_channels.cuh"
#include "fast_store.cuh"
#include "fast_work.cuh"
#include "launch.cuh"
#include "token_map.h"

/// The fast encoder's kernel and its launch.
namespace kvlab::kernels::cuda {

/// kWarps tiles a team, at a time. kGroup: warpgroups multiply; only compute capability 9.0a can.
/// kChannelKeys: of a key group, kSingle: rows of find_rows, kClip: tokens may be clipped.
template <bool kBf16, Product kProduct, bool kGroup, bool kChannelKeys, bool kSingle, bool kClip,
          int kWarps>
__global__ void __launch_bounds__(Team<kWarps>::threads* most_teams(kProduct, kChannelKeys, kWarps),
                                  1)
    fast_kernel(const __grid_constant__ Layer first, const Layer* layers, int layer_count,
                const __grid_constant__ TokenSource source, int step,
                const __grid_constant__ Course course, const __grid_constant__ TokenMap key_map,
                const __grid_constant__ TokenMap value_map) {
#ifndef __CUDA_ARCH_FEAT_SM90_ALL
  if constexpr (kGroup) return;
#endif
  constexpr bool rotated = kProduct != Product::none;
  constexpr int kParts = Parts<kBf16, kProduct>::count;
  // Three products of both orders in one kernel are too much for the compiler, which then lets one
  // wait for the other.
  constexpr bool kWide = kProduct != Product::dense || !kChannelKeys;
  using T = Team<kWarps>;
  // The matrix, a stage for each warpgroup.
  extern __shared__ __align__(1024) unsigned char memory[];
  __shared__ std::uint64_t arrived[16 / 4];
  const CacheView& view = first.cache;
  // Read once: a new reading waits behind other traffic to shared memory.
  int number;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(number));
  const int lane = number % 32;
  const bool key = static_cast<int>(blockIdx.x) < course.key_blocks;
  const Side side = key ? Side::key : Side::value;
  const int place = static_cast<int>(blockIdx.x) - (key ? 0 : course.key_blocks);
  const int own = place % course.rotations;
  if (number % 128 == 0) open_barrier(arrived + number / 128);
  if constexpr (kProduct == Product::dense) wait_for_predecessor();
  if constexpr (rotated) {
    const Rotation& rotation = (key ? first.spec.key : first.spec.value).rotation;
    const Order order = !key ? Order::values : kChannelKeys ? Order::channels : Order::keys;
    fill_matrix<kBf16, kProduct>(rotation.matrix + own * kFastDim * kFastDim, order, memory);
    publish_matrix();
    __syncthreads();
  }
  if constexpr (kProduct != Product::dense) wait_for_predecessor();
  // Signs instead of the rotation's numbers leave √d.
  constexpr float kScale = 1.0f / Parts<kBf16, kProduct>::scale;
  constexpr bool kSigns = kProduct == Product::signs;
  const FastJob job =
      make_fast_job(view.format, first.spec, side, kSigns ? inverse_root(kFastDim) : kScale,
                    kSigns ? 1.0f / kFastDim : kScale * kScale);

  __shared__ Stretches stretches;
  __shared__ ChannelScratch<kWarps>
      scratches[kChannelKeys ? most_teams(kProduct, true, kWarps) : 1];
  const unsigned heads = static_cast<unsigned>(view.kv_heads / course.rotations);
  const int teams = static_cast<int>(blockDim.x) / T::threads;
  // From lane 0, so that the compiler knows them to be the same for the warp.
  const int warps_before = __shfl_sync(kAllLanes, number / 32, 0);
  const int team = warps_before / kWarps;
  const int warp = warps_before % 4;
  const Seat seat(number % T::threads, lane);
  const int first_row = warp * kTile;
  unsigned char* stage = memory + kParts * kMatrixBytes + warps_before / 4 * kStageBytes;
  std::uint64_t* here = arrived + warps_before / 4;
  ChannelScratch<kWarps>& scratch = scratches[kChannelKeys ? team : 0];
  const Meeting meet{team + 1, T::threads};
  const unsigned stride = static_cast<unsigned>((key ? course.key_blocks : course.value_blocks) /
                                                course.rotations * teams);
  const unsigned mine = static_cast<unsigned>(place / course.rotations * teams + team);
  const int pairs = layer_count * view.batch;
  const bool by_channels = kChannelKeys && key;
  const bool normed = has_norms(job);
  // Norms of rotated tokens are made of the tile, where a lane has a fourth of a token's numbers.
  // By channels it has less, and those of a Hadamard rotation, which leaves norms as they are, come
  // from the stage. Over all heads they are there before.
  const bool of_stage = kProduct == Product::none || (kProduct == Product::signs && by_channels) ||
                        job.spec.scale == TokenScale::l2_heads;

  /// The tile from the stage, and the factor of row lane % 2.
  const auto take = [&](Tile& tile, const RowPlace(&places)[2]) {
    float factor = job.factor;
    const auto take_norm = [&] {
      if (!normed || !of_stage) return;
      const RowPlace own_place = chosen(places, lane % 2);
      const float norm = norm_of<kBf16, kProduct>(job, stage, first_row, own_place, lane);
      factor = store_norm<rotated>(job, own_place, norm, lane);
      if (by_channels && lane % 4 < 2) scratch.factor[own_place.token] = factor;
    };
    if constexpr (rotated) {
      const auto product = [&]<bool kChannels>(std::bool_constant<kChannels>) {
        rotate_tile<kBf16, kParts, kChannels, kGroup, kWide>(tile, stage, memory, warp, lane,
                                                             take_norm);
      };
      if (by_channels) {
        product(std::bool_constant<kChannelKeys>{});
      } else {
        product(std::false_type{});
      }
    } else {
      take_norm();
      if (by_channels) {
        take_channels<kBf16>(tile, stage, warp, lane);
      } else {
        take_tokens<kBf16>(tile, stage, key, first_row, lane);
      }
    }
    return factor;
  };
  const auto encode = [&](Tile& tile, const RowPlace(&places)[2], const Piece& piece,
                          float factor) {
    if constexpr (kChannelKeys) {
      if (key) {
        const ChannelBlock to{places[0].block, piece.from, piece.to, piece.fresh};
        if (normed && !of_stage) {
          store_norms_of_tile<kWarps>(job, tile, to, seat.thread, meet, scratch);
        }
        return encode_channels<rotated, kWarps>(job, tile, to, normed, seat.thread, meet, scratch);
      }
    }
    if (normed && !of_stage) {
      const float norm = norm_of_tile(job, tile, lane);
      factor = store_norm<rotated>(job, chosen(places, lane % 2), norm, lane);
    }
    encode_tokens<rotated, kSingle, kClip>(job, tile, places, normed, factor, lane);
  };

  if constexpr (kSingle) {
    // A thread block takes as many sequences as fill the rows of its teams.
    const int together = min(kTogether, max(1, 64 * teams / view.kv_heads));
    const int block = place / course.rotations;
    for (int chunk = block * together; chunk < pairs;
         chunk += static_cast<int>(stride) / teams * together) {
      find_stretches(first, layers, chunk, min(chunk + together, pairs), source, step, side,
                     stretches);
      const unsigned total = (static_cast<unsigned>(stretches.count) * heads + 63) / 64;
      for (unsigned index = static_cast<unsigned>(team); index < total;
           index += static_cast<unsigned>(teams)) {
        Rows rows;
        RowPlace places[2];
        find_rows(view, source, stretches, index, job.at.bytes, seat, rows, places);
        ask_rows(stage, rows, first_row, lane);
        // Before norms are stored.
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          if (places[r].there && places[r].token == 0) open_block(job, places[r], lane);
        }
        __syncwarp();
        await_rows();
        meet();
        Tile tile;
        const float factor = take(tile, places);
        meet();
        encode(tile, places, Piece{}, factor);
      }
    }
  } else {
    const unsigned pieces = static_cast<unsigned>(course.pieces);
    unsigned turn = 0;
    for (int chunk = 0; chunk < pairs; chunk += kTogether) {
      find_stretches(first, layers, chunk, min(chunk + kTogether, pairs), source, step, side,
                     stretches);
      // A stretch of pieces for each thread block, so that neighbours follow each other in it.
      const std::uint64_t total =
          std::uint64_t{static_cast<unsigned>(stretches.count)} * heads * pieces;
      auto index = static_cast<unsigned>(total * mine / stride);
      const auto end = static_cast<unsigned>(total * (mine + 1) / stride);
      if (index == end) continue;
      const unsigned row = index / pieces;
      unsigned at = index - row * pieces;
      unsigned pair = row / heads;
      unsigned head = row - pair * heads;
      Piece piece;
      // Whether there is one more piece to be stored, this one or a later one.
      const auto find = [&](bool this_one) {
        for (;; this_one = false) {
          if (!this_one) {
            if (++index == end) return false;
            if (++at == pieces) {
              at = 0;
              if (++head == heads) {
                head = 0;
                ++pair;
              }
            }
          }
          if (this_one || at == 0 ||
              !step_on<kWarps>(stretches.of[pair], static_cast<int>(at), piece)) {
            piece = piece_of<kWarps>(stretches.of[pair], static_cast<int>(pair),
                                     static_cast<int>(head + own * heads), static_cast<int>(at));
          }
          if (piece.found) return true;
        }
      };
      // Tokens of a whole piece come by one request, others each by themselves.
      const auto ask = [&] {
        const bool at_once = course.maps && piece.from == 0 && piece.to == T::tokens;
        const Stretch& stretch = stretches.of[piece.pair];
        if (!at_once) {
          ask_rows(stage, rows_of(view, source, stretch, piece, seat), first_row, lane);
        } else if (warp == 0 && lane == 0) {
          ask_tokens(stage, here, key ? key_map : value_map,
                     piece.token + warps_before / 4 % (kWarps / 4) * kStageTokens, piece.head,
                     stretch.sequence);
        }
        return at_once;
      };
      bool more = find(true);
      bool at_once = more && ask();
      while (more) {
        const Piece now = piece;
        RowPlace places[2];
        places_of(view, stretches.of[now.pair], now, job.at.bytes, seat, places);
        if (at_once) {
          await_tokens(here, turn++);
        } else {
          await_rows();
        }
        if (!at_once || by_channels) meet();
        Tile tile;
        const float factor = take(tile, places);
        meet();
        // The next piece's tokens are on their way while this one is quantized.
        more = find(false);
        if (more) at_once = ask();
        if (key && now.fresh) zero_padding<kWarps>(job, places[0].block, seat.thread);
        encode(tile, places, now, factor);
      }
    }
  }
}

/// Teams of a thread block: `most`, or as many as shared memory has room for.
inline int teams_that_fit(const void* kernel, int of_matrix, int of_team, int most) {
  int here = 0;
  int room = 0;
  cudaFuncAttributes attributes{};
  KVLAB_CUDA(cudaGetDevice(&here));
  KVLAB_CUDA(cudaDeviceGetAttribute(&room, cudaDevAttrMaxSharedMemoryPerBlockOptin, here));
  KVLAB_CUDA(cudaFuncGetAttributes(&attributes, kernel));
  room -= static_cast<int>(attributes.sharedSizeBytes) + of_matrix;
  return std::clamp(room / of_team, 1, most);
}

/// Whether warpgroups multiply and the copy engine brings tokens. As attention does, the variable
/// keeps to what compute capability 8.0 has.
inline bool may_use_hopper() {
  const char* path = std::getenv("KVLAB_CUDA_PATH");
  return device().major == 9 && !(path && std::strcmp(path, "sm_80") == 0);
}

template <bool kBf16, Product kProduct, bool kChannelKeys, bool kSingle, bool kClip, int kWarps>
void launch(const EncodeWork& work, Sides sides, Stream stream) {
  const CacheView& cache = work.first.cache;
  const EncodeSpec& spec = work.first.spec;
  Course course;
  const bool per_head = (sides.key ? spec.key : spec.value).rotation.per_head;
  course.rotations = kProduct == Product::dense && per_head ? cache.kv_heads : 1;
  const Device gpu = device();
  constexpr int held = kWarps * kTile;
  const bool whole = work.step == kAllTokens;
  course.pieces = (work.max_tokens + held - 1) / held + (whole ? 0 : 1);
  const std::int64_t rows = std::int64_t{cache.batch} * work.count * cache.kv_heads;
  const std::int64_t total = kSingle ? (rows + 63) / 64 : rows / course.rotations * course.pieces;
  if (total == 0) return;
  // Indices of a thread block run over kTogether sequences.
  if (total / (rows / cache.kv_heads) > 0x7fffffff / kTogether) {
    throw std::invalid_argument("encode: more work than one launch holds");
  }
  auto* kernel = fast_kernel<kBf16, kProduct, false, kChannelKeys, kSingle, kClip, kWarps>;
  if constexpr (kProduct != Product::none) {
    if (may_use_hopper())
      kernel = fast_kernel<kBf16, kProduct, true, kChannelKeys, kSingle, kClip, kWarps>;
  }
  constexpr int kOfMatrix = Parts<kBf16, kProduct>::count * kMatrixBytes;
  constexpr int kOfTeam = kWarps / 4 * kStageBytes;
  const int teams = teams_that_fit(reinterpret_cast<const void*>(kernel), kOfMatrix, kOfTeam,
                                   most_teams(kProduct, kChannelKeys, kWarps));
  const int bytes = kOfMatrix + teams * kOfTeam;
  KVLAB_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  // One thread block a multiprocessor, so that it makes its matrix once. Keys take longer than
  // values where they have a norm, and where their groups run along tokens (shares measured on an
  // H200).
  constexpr float kChannelShare = kProduct == Product::none    ? 0.68f
                                  : kProduct == Product::signs ? 0.6f
                                                               : 0.56f;
  const float key_share = !sides.value                      ? 1.0f
                          : !sides.key                      ? 0.0f
                          : kChannelKeys                    ? kChannelShare
                          : cache.format.norm == Norm::none ? 0.5f
                                                            : 0.53f;
  const auto blocks_of = [&](float share) {
    const int room = static_cast<int>(share * static_cast<float>(gpu.multiprocessors) + 0.5f);
    const std::int64_t useful = (total + teams - 1) / teams;
    const int each = std::max(1, room / course.rotations);
    return course.rotations * static_cast<int>(std::min<std::int64_t>(useful, each));
  };
  course.key_blocks = sides.key ? blocks_of(key_share) : 0;
  course.value_blocks = sides.value ? blocks_of(1.0f - key_share) : 0;
  course.maps = work.step == kAllTokens && may_use_hopper();
  TokenMap maps[2] = {};
  if (course.maps) {
    maps[0] = map_of(work.source.key, cache, work.source);
    maps[1] = map_of(work.source.value, cache, work.source);
  }
  const int grid = course.key_blocks + course.value_blocks;
  launch_after(kernel, dim3(static_cast<unsigned>(grid)), Team<kWarps>::threads * teams, bytes,
               stream, work.first, work.layers, work.count, work.source, work.step, course, maps[0],
               maps[1]);
}

template <bool kBf16, Product kProduct, bool kClip>
void launch_fast(const EncodeWork& work, Sides sides, bool single, Stream stream) {
  if constexpr (!kClip) {
    const Format& format = work.first.cache.format;
    if (block_tokens(format) == 128) {
      return launch<kBf16, kProduct, true, false, false, 8>(work, sides, stream);
    }
    if (format.key.axis == Axis::channel) {
      return launch<kBf16, kProduct, true, false, false, 4>(work, sides, stream);
    }
  }
  if constexpr (kProduct != Product::dense) {
    if (single) return launch<kBf16, kProduct, false, true, kClip, 4>(work, sides, stream);
  }
  return launch<kBf16, kProduct, false, false, kClip, 4>(work, sides, stream);
}

}  // namespace kvlab::kernels::cuda
