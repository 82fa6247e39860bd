#include "attend_place.cuh"
#include "check.h"
#include "kvlab/kernels/attend_schedule.h"
#include "launch.cuh"

namespace kvlab::kernels::cuda {
namespace {

/// One warp, whose lanes try 32 sizes of a place at once; then one lane lays the sequences out.
__global__ void __launch_bounds__(kWarp)
    schedule_kernel(const __grid_constant__ CacheView cache, int warps, int count,
                    PlaceContents* places, PlaceRange* ranges) {
  __shared__ int turns[kMostScheduled];
  const int lane = static_cast<int>(threadIdx.x);
  wait_for_predecessor();
  long long all = 0;
  int longest = 0;
  for (int i = lane; i < cache.batch; i += kWarp) {
    const int tokens = cache.tokens[i];
    const HistoryEnds ends = history_ends(cache.rule, tokens);
    const int history = min(ends.key, ends.value) - history_begin(cache, tokens);
    const int records = (history + kRecordTokens - 1) / kRecordTokens;
    turns[i] = max(1, (records + warps - 1) / warps);
    all += turns[i];
    longest = max(longest, turns[i]);
  }
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    all += __shfl_xor_sync(0xffffffffu, all, step);
    longest = max(longest, __shfl_xor_sync(0xffffffffu, longest, step));
  }
  __syncwarp();

  PlaceSizes sizes = place_sizes(all, cache.batch, count);
  while (sizes.least < sizes.most) {
    const int step = (sizes.most - sizes.least + kWarp - 1) / kWarp;
    const int size = min(sizes.least + lane * step, sizes.most);
    Placing trial(size);
    for (int i = 0; i < cache.batch; ++i) trial.add(turns[i]);
    const unsigned suffices = __ballot_sync(0xffffffffu, trial.places() <= count);
    const int first = suffices ? __ffs(static_cast<int>(suffices)) - 1 : kWarp;
    sizes.most = min(sizes.most, sizes.least + first * step);
    if (first > 0) sizes.least = min(sizes.most, sizes.least + (first - 1) * step + 1);
  }

  // One place a sequence: several blocks share a multiprocessor and even each other out. An earlier
  // schedule goes, from all places.
  if (count == cache.batch && longest <= sizes.most + sizes.most / 2) {
    for (int place = lane; place < count; place += kWarp) places[place] = PlaceContents{};
    return;
  }
  if (lane > 0) return;
  const auto begin = [&](int place, int sequence, int record) {
    if (place < count) places[place].first_sequence = sequence, places[place].first_record = record;
    if (place > 0) places[place - 1].end_sequence = sequence, places[place - 1].end_record = record;
  };
  Placing placing(sizes.most);
  for (int i = 0; i < cache.batch; ++i) {
    const Placing::Span span = placing.add(turns[i]);
    ranges[i] = {span.first, span.last};
    if (span.opens) begin(span.first, i, 0);
    for (int place = span.first + 1; place <= span.last; ++place)
      begin(place, i, (span.head + (place - span.first - 1) * sizes.most) * warps);
  }
  for (int place = placing.places(); place <= count; ++place) begin(place, cache.batch, 0);
}

}  // namespace

void schedule(const AttendPlan& plan, const CacheView& cache, void* scratch, Stream stream) {
  if (!plan.scheduled) return;
  const Scratch memory = divide_scratch(plan, cache, scratch);
  launch_after(schedule_kernel, dim3(1), kWarp, 0, stream, cache, plan.warps,
               cache.batch * plan.splits, memory.places, memory.ranges);
}

}  // namespace kvlab::kernels::cuda
