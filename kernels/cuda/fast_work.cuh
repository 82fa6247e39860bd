#pragma once

#include "fast_params.cuh"
#include "tile_product.cuh"

/// Which tokens a thread block of the fast encoder takes, and where they go: stretches of
/// sequences, cut into pieces for teams of warps.
namespace kvlab::kernels::cuda {

/// Warps that share a piece of the work; a thread block has several such teams and one matrix for
/// all.
template <int kWarps>
struct Team {
  static constexpr int threads = 32 * kWarps;
  static constexpr int tokens = kWarps * kTile;
};

/// Teams of a thread block: 16 warps, but 12, for their registers, where keys go by channels and
/// are rotated.
KVLAB_HD constexpr int most_teams(Product product, bool channel_keys, int warps) {
  return (channel_keys && product != Product::none ? 12 : 16) / warps;
}

/// A thread's place in its team.
struct Seat {
  int thread;  // of the team
  int lane;
  int token;  // of the lane's first row; the second is 8 behind

  __device__ __forceinline__ Seat(int thread, int lane)
      : thread(thread), lane(lane), token(thread / 32 * kTile + lane / 4) {}
};

/// How a launch goes over its work. A thread block has one side, the first ones keys.
struct Course {
  int pieces = 0;  // blocks of the cache that a sequence's step may touch
  int key_blocks = 0;
  int value_blocks = 0;
  int rotations = 1;  // matrices of a side: heads are dealt to them
  bool maps = false;  // there are TokenMaps of the source
};

/// A sequence of a layer that has tokens to be stored.
struct Stretch {
  std::uint8_t* pool;
  const std::int32_t* table;  // of its pages
  const std::uint16_t* from;  // head 0, token 0 of the sequence, or row 0 of its ring
  int sequence;
  int start;                  // token: of the history
  int begin, end, other_end;  // of its span
};

/// The stretches that a thread block looks at together: finding them is two trips to memory, for
/// all at once.
inline constexpr int kTogether = 128;
struct Stretches {
  Stretch of[kTogether];
  int of_warp[kTogether / 32];
  int count;
};

/// Finds those among sequences first … min(first + kTogether, end) of all layers, in their order,
/// as every thread block must find the same; all threads.
__device__ __forceinline__ void find_stretches(const Layer& view, const Layer* layers, int first,
                                               int end, const TokenSource& source, int step,
                                               Side side, Stretches& found) {
  const int pair = first + static_cast<int>(threadIdx.x);
  Stretch stretch;
  bool some = false;
  if (threadIdx.x < kTogether && pair < end) {
    const int batch = view.cache.batch;
    const int layer = pair / batch;
    const int sequence = pair - layer * batch;
    const CacheView& cache = layers ? layers[layer].cache : view.cache;
    const bool key = side == Side::key;
    const int tokens = cache.tokens[sequence];
    const Span span = span_of(view.cache.rule, tokens, step, side);
    // A prefill opens the other side's blocks too, so that their empty halves are zero.
    const int longest = step == kAllTokens && span.other_end > span.end ? span.other_end : span.end;
    some = span.begin < longest;
    const void* array = key ? source.key : source.value;
    stretch = {cache.pool,
               cache.block_table + sequence * cache.table_stride,
               array
                   ? static_cast<const std::uint16_t*>(array) + sequence * source.batch_stride
                   : (key ? cache.recent_key : cache.recent_value) + sequence * cache.recent_stride,
               sequence,
               view.cache.rule.sink < tokens ? view.cache.rule.sink : tokens,
               span.begin,
               span.end,
               span.other_end};
  }
  const unsigned vote = __ballot_sync(kAllLanes, some);
  const unsigned warp = threadIdx.x / 32;
  __syncthreads();  // those found before have been read
  if (threadIdx.x < kTogether && threadIdx.x % 32 == 0) found.of_warp[warp] = __popc(vote);
  __syncthreads();
  if (threadIdx.x < kTogether) {
    int place = __popc(vote & ((1u << threadIdx.x % 32) - 1u));
    for (unsigned before = 0; before < warp; ++before) place += found.of_warp[before];
    if (some) found.of[place] = stretch;
    if (threadIdx.x == kTogether - 1) found.count = place + some;
  }
  __syncthreads();
}

__device__ __forceinline__ std::uint8_t* block_of(const CacheView& view, std::uint8_t* pool,
                                                  int page, int head, int bytes) {
  return pool + (std::int64_t{page} * view.kv_heads + head) * bytes;
}

/// The tokens of a head of a stretch, in the step's tensor or in the recent ring.
struct Tokens {
  const std::uint16_t* from;  // token 0, or row 0 of the ring
  std::int64_t stride;
  int capacity;  // of the ring, 0: no ring

  __device__ __forceinline__ Tokens(const CacheView& view, const TokenSource& source,
                                    const Stretch& stretch, int head)
      : from(stretch.from + head * source.head_stride), stride(source.token_stride), capacity(0) {
    if (source.key) return;
    capacity = view.recent_capacity;
    stride = kFastDim;
    from = stretch.from + std::int64_t{head} * capacity * kFastDim;
  }
  __device__ __forceinline__ const std::uint16_t* row(int token) const {
    return from + (capacity ? token % capacity : token) * stride;
  }
};

/// A block of the cache.
struct Piece {
  int pair, head;  // of the stretches
  int page;
  int token;     // the block's first, in the step's tensor or the ring
  int from, to;  // tokens of the block that the step stores
  bool fresh;    // the step is the first to touch the block and fills the rest with zeros
  bool found;    // there is something to be stored
};

/// Block number `index` of those that a step touches of a head of a stretch.
template <int kWarps>
__device__ __forceinline__ Piece piece_of(const Stretch& stretch, int pair, int head, int index) {
  constexpr int held = Team<kWarps>::tokens;
  const int block = stretch.begin / held + index;
  const int first = block * held;
  Piece piece;
  piece.fresh = stretch.begin <= first;
  const int longest =
      piece.fresh && stretch.other_end > stretch.end ? stretch.other_end : stretch.end;
  piece.found = first < longest;
  piece.pair = pair;
  piece.head = head;
  piece.page = piece.found ? stretch.table[block] : 0;
  piece.token = stretch.start + first;
  piece.from = stretch.begin > first ? stretch.begin - first : 0;
  piece.to = stretch.end - first < 0 ? 0 : stretch.end - first < held ? stretch.end - first : held;
  return piece;
}

/// Moves on to the next block where it is as full as this one; else false.
template <int kWarps>
__device__ __forceinline__ bool step_on(const Stretch& stretch, int index, Piece& piece) {
  constexpr int held = Team<kWarps>::tokens;
  const int block = stretch.begin / held + index;
  if (piece.to != held || (block + 1) * held > stretch.end) return false;
  piece.page = stretch.table[block];
  piece.token += held;
  piece.from = 0;
  piece.fresh = true;
  return true;
}

/// The lane's tokens of a piece; any where the piece lacks them.
__device__ __forceinline__ Rows rows_of(const CacheView& view, const TokenSource& source,
                                        const Stretch& stretch, const Piece& piece,
                                        const Seat& seat) {
  const Tokens tokens(view, source, stretch, piece.head);
  Rows rows;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int token = seat.token + 8 * r;
    const int there = token < piece.from ? piece.from : token < piece.to ? token : piece.to - 1;
    rows.row[r] = piece.from < piece.to ? tokens.row(piece.token + there) : stretch.from;
  }
  return rows;
}

__device__ __forceinline__ void places_of(const CacheView& view, const Stretch& stretch,
                                          const Piece& piece, int bytes, const Seat& seat,
                                          RowPlace (&places)[2]) {
  std::uint8_t* block = block_of(view, stretch.pool, piece.page, piece.head, bytes);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int token = seat.token + 8 * r;
    const bool there = token >= piece.from && token < piece.to;
    places[r] = {block, token, there, token >= piece.from && (piece.fresh || there)};
  }
}

/// 64 rows: the token that leaves each head of as many stretches.
__device__ __forceinline__ void find_rows(const CacheView& view, const TokenSource& source,
                                          const Stretches& stretches, unsigned index, int bytes,
                                          const Seat& seat, Rows& rows, RowPlace (&places)[2]) {
  constexpr int held = 4 * kTile;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const unsigned row = index * 64 + static_cast<unsigned>(seat.token + 8 * r);
    const unsigned pair = row / static_cast<unsigned>(view.kv_heads);
    const int head = static_cast<int>(row - pair * static_cast<unsigned>(view.kv_heads));
    places[r] = {nullptr, 0, false, false};
    rows.row[r] = stretches.of[0].from;
    if (pair >= static_cast<unsigned>(stretches.count)) continue;
    const Stretch& stretch = stretches.of[pair];
    const int at = stretch.begin;
    places[r] = {block_of(view, stretch.pool, stretch.table[at / held], head, bytes), at % held,
                 true, true};
    rows.row[r] = Tokens(view, source, stretch, head).row(stretch.start + at);
  }
}

}  // namespace kvlab::kernels::cuda
