#pragma once

#include "attend_keys.cuh"
#include "attend_queries.cuh"
#include "attend_share.cuh"
#include "attend_values.cuh"

/// The tuned attention's kernel and its launch.
namespace kvlab::kernels::cuda {

/// kScheduled: by a schedule, if there is one. A kernel of its own: the loop over sequences costs
/// some percent.
template <int kIndex, bool kScheduled>
__global__ void __launch_bounds__(Tuned<kIndex>::kRegisterThreads, 1)
    attend_tuned(const __grid_constant__ AttendParams p) {
  using T = Tuned<kIndex>;
  constexpr int kDim = T::kDim, kRows = T::kRows;
  constexpr bool kKeeps = kScheduled || kRows <= 8;  // spares registers; with 16 rows costs some
  extern __shared__ __align__(128) unsigned char memory[];
  __shared__ std::uint64_t barriers[kTunedWarps * kStages];
  __shared__ typename T::Workshop shop;
  __shared__ KeptPlace kept;
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  constexpr int kRing = kStages * T::kRecord;
  auto* query_memory = reinterpret_cast<float*>(memory + warps * kRing);
  const WarpParts history_parts{reinterpret_cast<float*>(memory), kRing / 4};
  const WarpParts window_parts{query_memory + 2 * kRows * kRowStride<kDim>,
                               kRows * kOutputStride<kDim>};
  unsigned char* records = memory + warp * kRing;
  const CopyRing<T::kRecord> ring(records, barriers + warp * kStages, p.bulk != 0, lane);
  wait_for_predecessor();
  int sequence = static_cast<int>(blockIdx.z);
  PlaceContents place{};
  if constexpr (kScheduled) {
    place = place_of_block(p);
    if (place.exists() && !of_window(p)) sequence = place.first_sequence;
    if (sequence >= p.cache.batch) return;  // a place that the schedule had no use for
  }

#pragma unroll 1
  for (;;) {
    const Share<kScheduled> share(p, place, sequence);
    // Trips to memory that do not wait for each other: length, page numbers where they can be told
    // without it, queries.
    BlockPlace at = share.at;
    if constexpr (kKeeps) kept.keep(at);
    const int tokens = p.cache.tokens[at.sequence];
    const std::int32_t* table = p.cache.block_table + at.sequence * p.cache.table_stride;
    int first = at.split + at.splits * warp, step = at.splits * warps;
    if (share.scheduled) first = share.first + warp, step = warps;
    // A lane holds the page of the warp's record number `lane` of 32: in the loop a look-up of its
    // own would be a trip to memory that each record waits for.
    int pages = 0;
    const auto look_up = [&](int turn, int end) {
      const int record = first + (turn + lane) * step;
      if (record < end) pages = table[record];
    };
    const bool early = p.interleave || share.scheduled;
    if (early) look_up(0, min(share.end, static_cast<int>(p.cache.table_stride)));
    load_queries<kDim>(p, at, query_memory, kRows);
    fill_in_lengths(p, tokens, at);

    const bool has_history = at.has_history();
    const int history = (at.ends.key < at.ends.value ? at.ends.key : at.ends.value) - at.begin;
    int end = has_history ? (history + kRecordTokens - 1) / kRecordTokens : 0;
    if (!early) {
      const int chunk = (end + at.splits - 1) / at.splits;
      first = at.split * chunk + warp;
      step = warps;
      end = min(at.split * chunk + chunk, end);
      look_up(0, end);
    }
    end = min(end, share.end);
    const std::uint8_t* heads = p.cache.pool + static_cast<std::int64_t>(at.head) * T::kRecord;
    const std::int64_t page_bytes = static_cast<std::int64_t>(p.cache.kv_heads) * T::kRecord;
    const auto ask = [&](int turn) {
      if (turn > 0 && turn % kWarp == 0) look_up(turn, end);
      const int page = __shfl_sync(0xffffffffu, pages, turn % kWarp);
      ring.ask(turn, first + turn * step < end ? heads + page * page_bytes : nullptr);
    };
#pragma unroll
    for (int i = 0; i < kStages; ++i) ask(i);

    const QueryTile<kDim> tile = rotate_queries<kDim>(p, at, query_memory, kRows);
    if (has_history) T::make_operands(p, tile, shop, warp, warps, lane);
    // The window waits for memory and the history for instructions: half of the warps have the one
    // while the other half have the other.
    const bool window_last = has_history && warp % 2 != 0;
#pragma unroll 1
    for (int phase = 0; phase < 2; ++phase) {
      if ((phase == 1) == window_last) {
        if (p.inside || !has_history)
          window_part<kDim, kRows>(p, at, tile, window_parts, warp, warps);
        continue;
      }
      if (!has_history) continue;
      const typename T::Queries queries = T::take_queries(p, at, tile, shop, lane);
      const int safe = min(history, row_limit(p, at, at.row_tile * kRows) - at.begin);
      typename T::State state;
      state.clear();
      int turn = 0;
      for (int record = first; record < end; record += step, ++turn) {
        ring.wait(turn);
        const bool masked = (record + 1) * kRecordTokens > safe;
        int limits[T::kColumns] = {};
        if (masked) {
#pragma unroll
          for (int i = 0; i < T::kColumns; ++i) {
            const int row = at.row_tile * kRows + T::lane_row(lane % 4, i);
            limits[i] = min(history, row_limit(p, at, row) - at.begin) - record * kRecordTokens;
          }
        }
        T::add_record(records + turn % kStages * T::kRecord, queries, p.cache.format.norm_inverse,
                      masked, limits, lane, state);
        __syncwarp();
        ask(turn + kStages);
      }
      __syncwarp();
      T::hand_over(state, queries, history_parts, warp, lane);
    }
    release_successor();
    if constexpr (kKeeps) kept.give_back(at);
    finish_block<kDim, kRows>(p, at, history_parts, window_parts, query_memory, warps);
    if (!kScheduled || of_window(p)) return;
    place = place_of_block(p);
    sequence = at.sequence + 1;
    if (!place.exists() || sequence > place.last_sequence()) return;
    __syncthreads();
    ring.restart();
  }
}

template <int kIndex, bool kScheduled>
void launch_tuned(const AttendParams& p, int warps, Stream stream) {
  const auto kernel = attend_tuned<kIndex, kScheduled>;
  static const bool raised = [&] {
    KVLAB_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    kMostSharedBytes));
    return true;
  }();
  static_cast<void>(raised);
  const int bytes = shared_bytes(kInstances[kIndex], warps, p.has_window());
  const dim3 grid(static_cast<unsigned>(p.splits + p.window),
                  static_cast<unsigned>(p.cache.kv_heads * p.row_tiles),
                  static_cast<unsigned>(p.cache.batch));
  launch_after(kernel, grid, warps * kWarp,
               std::max(bytes, room_for_one_launch(static_cast<int>(grid.x * grid.y * grid.z))),
               stream, p);
}

template <int kIndex>
void launch_tuned(const AttendParams& p, int warps, Stream stream) {
  if constexpr (has_schedule(kInstances[kIndex])) {
    if (p.places) return launch_tuned<kIndex, true>(p, warps, stream);
  }
  launch_tuned<kIndex, false>(p, warps, stream);
}

}  // namespace kvlab::kernels::cuda
