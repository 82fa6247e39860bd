#include <algorithm>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>

#include "attend_runtime.h"
#include "attend_table.h"
#include "kvlab/kernels/attend_schedule.h"

namespace kvlab::kernels::cuda {
namespace {

constexpr int kMostRows = 16 * 8;  // query heads to a KV head times query tokens

/// The format as far as an instance is compiled for it; the rest is read at run time.
Format compiled_part(Format format) {
  format.window = Type::bf16;
  format.norm_inverse = false;
  if (format.norm == Norm::heads) format.norm = Norm::head;
  if (format.norm == Norm::none) format.norm_type = Type::f16;
  return format;
}

/// The smallest instance that takes all rows at once, else the largest there is; −1: none.
int find_instance(const Format& format, int rows) {
  const Format wanted = compiled_part(format);
  int found = -1;
  for (int i = 0; i < kInstanceCount; ++i) {
    if (!(kInstances[i].format == wanted)) continue;
    const int has = kInstances[i].rows;
    const int best = found < 0 ? 0 : kInstances[found].rows;
    if (found < 0 || (best < rows ? has > best : has >= rows && has < best)) found = i;
  }
  return found;
}

void check(const CacheView& cache, const AttendArgs& args, int max_tokens) {
  if (const auto why = refusal(cache.format)) throw std::invalid_argument(*why);
  const auto demand = [](bool met, const std::string& what) {
    if (!met) throw std::invalid_argument("attention: " + what);
  };
  demand(cache.batch >= 1 && cache.batch <= 65535,
         "batch must be 1 to 65,535, is " + std::to_string(cache.batch));
  demand(cache.kv_heads >= 1, "there must be a KV head");
  demand(
      args.q_heads % cache.kv_heads == 0 && args.q_heads / cache.kv_heads <= 16 && args.q_heads > 0,
      std::to_string(args.q_heads) + " query heads to " + std::to_string(cache.kv_heads) +
          " KV heads; served are 1 to 16 of them to each");
  demand(args.query_tokens >= 1 && args.query_tokens <= 8,
         "1 to 8 query tokens are served, not " + std::to_string(args.query_tokens));
  demand(max_tokens >= 1, "max_tokens must be at least 1");
}

std::int64_t align(std::int64_t bytes) { return (bytes + 255) / 256 * 256; }

/// What depends on the plan alone.
AttendParams params_of(const AttendPlan& plan, const CacheView& cache) {
  AttendParams params;
  params.cache = cache;
  params.splits = plan.splits;
  params.window = plan.window;
  params.inside = plan.inside ? 1 : 0;
  params.row_tiles = plan.row_tiles;
  params.parts = params.first_part(cache.batch, cache.batch * plan.splits);
  return params;
}

/// Where the parts of the scratch memory begin.
struct ScratchOffsets {
  std::int64_t places, ranges, partial;
};

ScratchOffsets scratch_offsets(const AttendPlan& plan, const CacheView& cache) {
  const std::int64_t batch = cache.batch;
  ScratchOffsets at;
  at.places = align(batch * cache.kv_heads * plan.row_tiles * std::int64_t{sizeof(unsigned)});
  const std::int64_t places = plan.scheduled ? batch * plan.splits : 0;
  const std::int64_t ranges = plan.scheduled ? batch : 0;
  at.ranges = at.places + align(places * std::int64_t{sizeof(PlaceContents)});
  at.partial = at.ranges + align(ranges * std::int64_t{sizeof(PlaceRange)});
  return at;
}

}  // namespace

Scratch divide_scratch(const AttendPlan& plan, const CacheView& cache, void* scratch) {
  const ScratchOffsets at = scratch_offsets(plan, cache);
  auto* bytes = static_cast<char*>(scratch);
  return {static_cast<unsigned*>(scratch), reinterpret_cast<PlaceContents*>(bytes + at.places),
          reinterpret_cast<PlaceRange*>(bytes + at.ranges),
          reinterpret_cast<float*>(bytes + at.partial)};
}

AttendPlan plan_attend(const CacheView& cache, const AttendArgs& args, int max_tokens,
                       const Device& device, Lengths lengths) {
  check(cache, args, max_tokens);
  const char* path = std::getenv("KVLAB_CUDA_PATH");
  const std::string_view wanted = path ? path : "";
  const int rows = args.q_heads / cache.kv_heads * args.query_tokens;
  static_assert(kMostRows == 128);

  AttendPlan plan;
  plan.instance = wanted == "runtime" ? -1 : find_instance(cache.format, rows);
  plan.rows = plan.instance < 0 ? kRuntimeRows : kInstances[plan.instance].rows;
  plan.row_tiles = (rows + plan.rows - 1) / plan.rows;
  plan.bulk = device.major >= 9 && wanted != "sm_80";

  const int items = cache.batch * cache.kv_heads * plan.row_tiles;
  const int records = (max_tokens + block_tokens(cache.format) - 1) / block_tokens(cache.format);
  // Few sequences: one block of eight warps on a multiprocessor. More of them do better as blocks
  // of four, two on each, and many as three, which then need no split.
  const bool few = items <= device.multiprocessors / 2;
  const bool many = items > device.multiprocessors;
  const int places = device.multiprocessors * (few ? 1 : many ? 3 : 2);
  const int window_tokens = cache.sink_capacity + cache.recent_capacity;
  plan.warps = plan.instance < 0 ? kRuntimeWarps : few ? 8 : 4;
  if (plan.instance >= 0 &&
      shared_bytes(kInstances[plan.instance], plan.warps, window_tokens > 0) > kMostSharedBytes) {
    plan.warps = 4;
  }
  const int most = std::max(1, (records + plan.warps - 1) / plan.warps);
  const int share = std::max(1, places / items);  // of the places, a sequence's
  plan.splits = std::min(share, most);
  if (window_tokens > 0) {
    // A block of its own takes records from none, inside takes each block some time (16 records'
    // where blocks are of eight warps): whichever is less.
    plan.inside = share == 1 || records > (few ? 16 : 64) * share * (share - 1);
    if (!plan.inside) {
      plan.splits = std::min(share - 1, most);
      const int useful = (window_tokens + kTile * plan.warps - 1) / (kTile * plan.warps);
      plan.window = std::clamp(share - plan.splits, 1, useful);
    }
  }
  // Taking records in turn lets table look-ups start before the length is known; with more splits
  // side by side a stretch each is kinder to the memory.
  plan.interleave = few || plan.splits == 1;

  plan.scheduled = lengths == Lengths::unlike && plan.instance >= 0 &&
                   has_schedule(kInstances[plan.instance]) && cache.batch > 1 &&
                   cache.batch <= kMostScheduled;

  const AttendParams params = params_of(plan, cache);
  const bool merges = plan.splits + plan.window > 1 || plan.scheduled;
  const std::int64_t parts = merges ? params.parts : 0;
  const std::int64_t part_bytes = static_cast<std::int64_t>(plan.rows) * (cache.format.dim + 2) * 4;
  plan.scratch_bytes =
      scratch_offsets(plan, cache).partial + cache.kv_heads * plan.row_tiles * parts * part_bytes;
  return plan;
}

void attend(const AttendPlan& plan, const CacheView& cache, const AttendArgs& args, void* scratch,
            Stream stream) {
  AttendParams params = params_of(plan, cache);
  params.args = args;
  const Scratch memory = divide_scratch(plan, cache, scratch);
  params.ticket = memory.ticket;
  params.partial = memory.partial;
  // Table look-ups ahead of the length are bounded by the stride; a shared row does not tell its
  // own.
  const bool bounded = cache.table_stride > 0;
  params.interleave = plan.interleave && bounded ? 1 : 0;
  if (plan.scheduled && bounded) params.places = memory.places, params.ranges = memory.ranges;
  params.group = args.q_heads / cache.kv_heads;
  params.bulk = plan.bulk ? 1 : 0;
  if (plan.instance < 0) return launch_runtime(params, stream);
  for (const auto find : {launch_d64, launch_d128_token, launch_d128_channel, launch_d256}) {
    if (const Launch launch = find(plan.instance)) return launch(params, plan.warps, stream);
  }
}

}  // namespace kvlab::kernels::cuda
