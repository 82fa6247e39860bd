#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "check.h"
#include "encode_fast.cuh"
#include "fast_store.cuh"
#include "launch.cuh"
#include "tile_product.cuh"

namespace kvlab::kernels::cuda {
namespace {

/// Warps that share a piece of the work; a thread block has several such teams and one matrix for
/// all.
template <int kWarps>
struct Team {
  static constexpr int count = kWarps == 4 ? 3 : 1;  // of a thread block
  static constexpr int threads = 32 * kWarps;
  static constexpr int tokens = kWarps * kTile;

  /// From lane 0, so that the compiler knows it to be the same for the warp.
  __device__ static __forceinline__ int index() {
    return __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / threads, 0);
  }
  __device__ static __forceinline__ int thread() { return static_cast<int>(threadIdx.x) % threads; }
  /// Token of the lane's first row; the second is 8 behind.
  __device__ static __forceinline__ int token() {
    return thread() / 32 * kTile + thread() % 32 / 4;
  }
};

/// How a launch goes over its work. A thread block has one side, the first ones keys.
struct Course {
  int pieces = 0;  // blocks of the cache that a sequence's step may touch
  int key_blocks = 0;
  int value_blocks = 0;
  int rotations = 1;  // matrices of a side: heads are dealt to them
  bool warpgroup = false;
};

/// A sequence of a layer that has tokens to be stored.
struct Stretch {
  std::uint8_t* pool;
  const std::int32_t* table;  // of its pages
  const std::uint16_t* from;  // head 0, token 0 of the sequence, or row 0 of its ring
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

/// A block of the cache, or 64 rows of blocks of their own.
struct Piece {
  Rows rows;           // the lane's two tokens; any where the piece lacks them
  std::uint8_t* pool;  // and the page of the block
  int head, page;
  int from, to;  // tokens of the block that the step stores
  bool fresh;    // the step is the first to touch the block and fills the rest with zeros
  bool found;    // there is something to be stored, the same for all threads
};

/// The blocks of a head of a stretch, one after the other.
template <int kWarps>
struct Blocks {
  static constexpr int held = Team<kWarps>::tokens;
  const Stretch& stretch;
  Tokens tokens;
  int head;

  __device__ __forceinline__ Blocks(const CacheView& view, const TokenSource& source,
                                    const Stretch& stretch, int head)
      : stretch(stretch), tokens(view, source, stretch, head), head(head) {}

  /// Number `index` of those that the step touches.
  __device__ __forceinline__ Piece get(int index) const {
    const int block = stretch.begin / held + index;
    const int first = block * held;
    Piece piece;
    piece.fresh = stretch.begin <= first;
    const int longest =
        piece.fresh && stretch.other_end > stretch.end ? stretch.other_end : stretch.end;
    piece.found = first < longest;
    piece.from = stretch.begin > first ? stretch.begin - first : 0;
    piece.to = stretch.end - first < 0      ? 0
               : stretch.end - first < held ? stretch.end - first
                                            : held;
    piece.pool = stretch.pool;
    piece.head = head;
    piece.page = piece.found ? stretch.table[block] : 0;
    const bool some = piece.found && piece.from < piece.to;
    const int token = Team<kWarps>::token();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int there = token + 8 * r < piece.from ? piece.from
                        : token + 8 * r < piece.to ? token + 8 * r
                                                   : piece.to - 1;
      piece.rows.row[r] = some ? tokens.row(stretch.start + first + there) : stretch.from;
    }
    return piece;
  }
};

/// Moves on to the next block where it is as full as this one, in the same tensor; else false.
template <int kWarps>
__device__ __forceinline__ bool step_on(const TokenSource& source, const Stretch& stretch,
                                        int index, Piece& piece) {
  constexpr int held = Team<kWarps>::tokens;
  const int block = stretch.begin / held + index;
  if (!source.key || piece.to != held || (block + 1) * held > stretch.end) return false;
  piece.page = stretch.table[block];
  piece.from = 0;
  piece.fresh = true;
#pragma unroll
  for (int r = 0; r < 2; ++r) piece.rows.row[r] += held * source.token_stride;
  return true;
}

template <int kWarps>
__device__ __forceinline__ void places_of(const CacheView& view, const Piece& piece, int bytes,
                                          RowPlace (&places)[2]) {
  std::uint8_t* block = block_of(view, piece.pool, piece.page, piece.head, bytes);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int token = Team<kWarps>::token() + 8 * r;
    const bool there = token >= piece.from && token < piece.to;
    places[r] = {block, token, there, token >= piece.from && (piece.fresh || there)};
  }
}

/// 64 rows: the token that leaves each head of as many stretches.
__device__ __forceinline__ void find_rows(const CacheView& view, const TokenSource& source,
                                          const Stretches& stretches, unsigned index, int bytes,
                                          Rows& rows, RowPlace (&places)[2]) {
  constexpr int held = 4 * kTile;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const unsigned row = index * 64 + static_cast<unsigned>(Team<4>::token() + 8 * r);
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

/// Zeroes what lies behind the norms; the keys' team does it.
template <int kWarps>
__device__ __forceinline__ void zero_padding(const FastJob& job, std::uint8_t* block) {
  using T = Team<kWarps>;
  const int norms = job.format.norm == Norm::none ? 0 : T::tokens * size_of(job.format.norm_type);
  for (int at = job.at.norm + norms + 4 * T::thread(); at < job.at.bytes; at += 4 * T::threads) {
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
  if (key) zero(job.at.norm, job.at.bytes);
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
template <bool kKey, bool kRotated, class Quantizers>
__device__ __forceinline__ void store_rows(const FastJob& job, Tile& tile,
                                           const RowPlace (&places)[2], int lane, float most_code,
                                           const Quantizers& quantizer) {
  const int t = lane % 4;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const RowPlace& place = places[r];
    const int k = place.token % kTile;
    if constexpr (kKey) {
      const uint4 words = packed_row<true, kRotated>(tile, most_code, quantizer, r, 0);
      if (place.writes) merge_codes(job, place, k % 8 * 4 + t, 0x33333333u, k / 8 * 2, words);
    } else {
#pragma unroll
      for (int l = 0; l < 2; ++l) {
        const uint4 words = packed_row<false, kRotated>(tile, most_code, quantizer, r, l);
        if (place.writes) {
          merge_codes(job, place, (2 * t + l) * 4 + k % 8 / 2, 0x0f0fu, k % 2 * 16 + k / 8 * 4,
                      words);
        }
      }
    }
  }
}

template <bool kKey, bool kRotated, class Quantizers>
__device__ __forceinline__ void store_tile(const FastJob& job, Tile& tile,
                                           const RowPlace (&places)[2], int lane, float most_code,
                                           const Quantizers& quantizer) {
  const uint4 words = packed<kKey, kRotated>(tile, most_code, quantizer);
  if (!places[0].writes) return;  // of tiles, all rows or none
  std::uint8_t* codes = places[0].block + sections_of(job.at, job.side).codes;
  reinterpret_cast<uint4*>(codes + places[0].token / kTile * tile_bytes(kFastDim, 2))[lane] = words;
}

/// kWarps tiles a team, at a time. kChannelKeys: of a key group, kSingle: rows of find_rows.
template <bool kBf16, Product kProduct, bool kChannelKeys, bool kSingle, int kWarps>
__global__ void __launch_bounds__(Team<kWarps>::threads* Team<kWarps>::count, 1)
    fast_kernel(const __grid_constant__ Layer first, const Layer* layers, int layer_count,
                const __grid_constant__ TokenSource source, int step,
                const __grid_constant__ Course course) {
  constexpr bool rotated = kProduct != Product::none;
  extern __shared__ __align__(128) std::uint32_t matrix[];
  const CacheView& view = first.cache;
  const int lane = threadIdx.x % 32;
  const bool key = static_cast<int>(blockIdx.x) < course.key_blocks;
  const Side side = key ? Side::key : Side::value;
  const int place = static_cast<int>(blockIdx.x) - (key ? 0 : course.key_blocks);
  const int own = place % course.rotations;
  __shared__ std::uint32_t always_zero;
  if (threadIdx.x == 0) always_zero = 0;
  if constexpr (kProduct == Product::dense) wait_for_predecessor();
  if constexpr (rotated) {
    const Rotation& rotation = (key ? first.spec.key : first.spec.value).rotation;
    fill_matrix<kBf16, kProduct>(rotation.matrix + own * kFastDim * kFastDim, key, matrix);
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
  const unsigned heads = static_cast<unsigned>(view.kv_heads / course.rotations);
  using T = Team<kWarps>;
  const int team = T::index();
  const unsigned stride = static_cast<unsigned>((key ? course.key_blocks : course.value_blocks) /
                                                course.rotations * T::count);
  const unsigned mine = static_cast<unsigned>(place / course.rotations * T::count + team);
  const int pairs = layer_count * view.batch;
  const auto encode = [&](Tile& tile, const RowPlace(&places)[2], const Piece& piece) {
    const auto stores_of = [&]<bool kKey>(std::bool_constant<kKey>) {
      return [&](float most_code, const auto& quantizer) {
        if constexpr (kSingle) {
          store_rows<kKey, rotated>(job, tile, places, lane, most_code, quantizer);
        } else {
          store_tile<kKey, rotated>(job, tile, places, lane, most_code, quantizer);
        }
      };
    };
    if (!key) return encode_tokens<rotated>(job, tile, places, lane, stores_of(std::false_type{}));
    if constexpr (kChannelKeys) {
      __shared__ ChannelScratch<kWarps> scratch[T::count];
      encode_channels<rotated, kWarps>(job, tile, places, piece.from, piece.to, piece.fresh,
                                       T::thread(), team + 1, scratch[team],
                                       stores_of(std::true_type{}));
    } else {
      encode_tokens<rotated>(job, tile, places, lane, stores_of(std::true_type{}));
    }
  };

  if constexpr (kSingle) {
    // A thread block takes as many sequences as fill the rows of its teams.
    const int together = min(kTogether, max(1, 64 * T::count / view.kv_heads));
    const int block = place / course.rotations;
    for (int chunk = block * together; chunk < pairs;
         chunk += static_cast<int>(stride) / T::count * together) {
      find_stretches(first, layers, chunk, min(chunk + together, pairs), source, step, side,
                     stretches);
      const unsigned total = (static_cast<unsigned>(stretches.count) * heads + 63) / 64;
      for (unsigned index = static_cast<unsigned>(team); index < total; index += T::count) {
        Rows rows;
        RowPlace places[2];
        find_rows(view, source, stretches, index, job.at.bytes, rows, places);
        Tile tile;
        if constexpr (rotated) {
          Loaded loaded;
          load_rows(loaded, rows, lane);
          rotate_tile<kBf16, Parts<kBf16, kProduct>::count>(tile, loaded, matrix, always_zero,
                                                            course.warpgroup, lane);
        } else {
          load_tile<kBf16>(tile, rows, key, lane);
        }
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          if (places[r].there && places[r].token == 0) open_block(job, places[r], lane);
        }
        __syncwarp();
        encode(tile, places, Piece{});
      }
    }
  } else {
    const unsigned pieces = static_cast<unsigned>(course.pieces);
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
      const auto find = [&] {
        const Blocks<kWarps> blocks(view, source, stretches.of[pair],
                                    static_cast<int>(head + own * heads));
        return blocks.get(static_cast<int>(at));
      };
      Piece piece = find();
      Loaded loaded;
      if constexpr (rotated) load_rows(loaded, piece.rows, lane);
      for (; index < end; ++index) {
        Tile tile;
        if (piece.found) {
          if constexpr (rotated) {
            rotate_tile<kBf16, Parts<kBf16, kProduct>::count>(tile, loaded, matrix, always_zero,
                                                              course.warpgroup, lane);
          } else {
            load_tile<kBf16>(tile, piece.rows, key, lane);
          }
        }
        // The next piece's tokens are on their way while this one is quantized.
        const Piece now = piece;
        if (index + 1 < end) {
          if (++at == pieces) {
            at = 0;
            if (++head == heads) {
              head = 0;
              ++pair;
            }
          }
          if (at == 0 || !step_on<kWarps>(source, stretches.of[pair], static_cast<int>(at), piece))
            piece = find();
          if constexpr (rotated) load_rows(loaded, piece.rows, lane);
        }
        if (!now.found) continue;
        RowPlace places[2];
        places_of<kWarps>(view, now, job.at.bytes, places);
        if (key && now.fresh) zero_padding<kWarps>(job, places[0].block);
        encode(tile, places, now);
      }
    }
  }
}

/// Norms over all heads of the tokens of a step, into every head's block. A warp has a token.
template <bool kBf16>
__global__ void __launch_bounds__(256)
    norm_kernel(const __grid_constant__ Layer first, const Layer* layers,
                const __grid_constant__ TokenSource source, int step) {
  const CacheView& view = first.cache;
  const CacheView& cache = layers ? layers[blockIdx.z].cache : first.cache;
  const int sequence = static_cast<int>(blockIdx.y);
  const int lane = threadIdx.x % 32;
  const int tokens = cache.tokens[sequence];
  const Span span = span_of(view.rule, tokens, step, Side::key);
  const int token = span.begin + static_cast<int>(blockIdx.x * 8 + threadIdx.x / 32);
  if (token >= span.end) return;
  const auto* from =
      source.key ? static_cast<const std::uint16_t*>(source.key) + sequence * source.batch_stride
                 : cache.recent_key + sequence * cache.recent_stride;
  const Stretch stretch{cache.pool,    cache.block_table + sequence * cache.table_stride,
                        from,          view.rule.sink < tokens ? view.rule.sink : tokens,
                        span.begin,    span.end,
                        span.other_end};
  double sum = 0.0;
  for (int head = 0; head < view.kv_heads; ++head) {
    const uint2 word = reinterpret_cast<const uint2*>(
        Tokens(view, source, stretch, head).row(stretch.start + token))[lane];
    const float2 a = floats_of<kBf16>(word.x);
    const float2 b = floats_of<kBf16>(word.y);
    const float x[4] = {a.x, a.y, b.x, b.y};
#pragma unroll
    for (int i = 0; i < 4; ++i) sum += static_cast<double>(x[i]) * x[i];
  }
  const Format& format = view.format;
  const float norm = stored_scale(sqrt(warp_sum(sum)), format.norm_type, format.norm_inverse);
  const int held = block_tokens(format);
  const Layout at = layout_of(format);
  for (int head = lane; head < view.kv_heads; head += 32) {
    std::uint8_t* block = block_of(view, stretch.pool, stretch.table[token / held], head, at.bytes);
    store_number(block + at.norm, norm_index(token % held), format.norm_type, norm);
  }
}

template <bool kBf16, Product kProduct, bool kChannelKeys, bool kSingle, int kWarps>
void launch(const EncodeWork& work, Sides sides, Stream stream) {
  const CacheView& cache = work.first.cache;
  const EncodeSpec& spec = work.first.spec;
  Course course;
  const bool per_head = (sides.key ? spec.key : spec.value).rotation.per_head;
  course.rotations = kProduct == Product::dense && per_head ? cache.kv_heads : 1;
  // As attention does, this variable keeps to what compute capability 8.0 has.
  const char* path = std::getenv("KVLAB_CUDA_PATH");
  const Device gpu = device();
  course.warpgroup = gpu.major == 9 && !(path && std::strcmp(path, "sm_80") == 0);
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
  constexpr int kBytes = Parts<kBf16, kProduct>::count * kMatrixBytes;
  const auto kernel = fast_kernel<kBf16, kProduct, kChannelKeys, kSingle, kWarps>;
  KVLAB_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  // One thread block a multiprocessor, so that it makes its matrix once. Keys take longer than
  // values where they have a norm, and where their groups run along tokens (shares measured on an
  // H200).
  constexpr int kTeams = Team<kWarps>::count;
  constexpr float kChannelShare = kProduct == Product::none ? 0.68f : 0.62f;
  const float key_share = !sides.value                      ? 1.0f
                          : !sides.key                      ? 0.0f
                          : kChannelKeys                    ? kChannelShare
                          : cache.format.norm == Norm::none ? 0.5f
                                                            : 0.55f;
  const auto blocks_of = [&](float share) {
    const int room = static_cast<int>(share * static_cast<float>(gpu.multiprocessors) + 0.5f);
    const std::int64_t useful = (total + kTeams - 1) / kTeams;
    const int each = std::max(1, room / course.rotations);
    return course.rotations * static_cast<int>(std::min<std::int64_t>(useful, each));
  };
  course.key_blocks = sides.key ? blocks_of(key_share) : 0;
  course.value_blocks = sides.value ? blocks_of(1.0f - key_share) : 0;
  const int grid = course.key_blocks + course.value_blocks;
  launch_after(kernel, dim3(static_cast<unsigned>(grid)), Team<kWarps>::threads * kTeams, kBytes,
               stream, work.first, work.layers, work.count, work.source, work.step, course);
}

template <bool kBf16, Product kProduct>
void dispatch(const EncodeWork& work, Sides sides, bool single, Stream stream) {
  const Format& format = work.first.cache.format;
  if (block_tokens(format) == 128) {
    return launch<kBf16, kProduct, true, false, 8>(work, sides, stream);
  }
  if (format.key.axis == Axis::channel) {
    return launch<kBf16, kProduct, true, false, 4>(work, sides, stream);
  }
  if constexpr (kProduct != Product::dense) {
    if (single) return launch<kBf16, kProduct, false, true, 4>(work, sides, stream);
  }
  return launch<kBf16, kProduct, false, false, 4>(work, sides, stream);
}

template <bool kBf16>
void dispatch(const EncodeWork& work, Sides sides, Product product, bool single, Stream stream) {
  switch (product) {
    case Product::none:
      return dispatch<kBf16, Product::none>(work, sides, single, stream);
    case Product::signs:
      return dispatch<kBf16, Product::signs>(work, sides, single, stream);
    case Product::dense:
      return dispatch<kBf16, Product::dense>(work, sides, single, stream);
  }
}

Product product_of(const SideEncode& spec) {
  switch (spec.rotation.kind) {
    case Rotation::Kind::none:
      return Product::none;
    case Rotation::Kind::hadamard:
      return Product::signs;
    case Rotation::Kind::dense:
      break;
  }
  return Product::dense;
}

bool takes_side(const Format& format, const SideFormat& side, const SideEncode& spec) {
  if (format.dim != kFastDim || side.bits != 2 || side.zero == Zero::codebook) return false;
  if (spec.clip != Clip::none || spec.center) return false;
  const bool heads = spec.scale == TokenScale::l2_heads;
  const bool l2 = heads || spec.scale == TokenScale::l2_head;
  if (!l2 && spec.scale != TokenScale::none) return false;
  switch (product_of(spec)) {
    case Product::none:
      // Codes of numbers as they came must be exact: Quantizer has that for half-even, a zero and
      // 16-bit scales.
      return side.zero == Zero::value && size_of(side.params) == 2 && !spec.grid.half_up;
    case Product::signs:
      return true;
    case Product::dense:
      // Before the rotation a norm is another one, as the matrix may be far from orthogonal.
      return !spec.scale_first && !heads;
  }
  return false;
}

bool loads_words(const void* array, const TokenSource& source) {
  return reinterpret_cast<std::uintptr_t>(array) % 16 == 0 && source.batch_stride % 8 == 0 &&
         source.head_stride % 8 == 0 && source.token_stride % 8 == 0;
}

/// How a step's tokens leave the ring.
enum class Leaving { otherwise, single, tiles };

Leaving leaving(const WindowRule& rule, int step) {
  if (rule.flush == Flush::full && rule.recent > 0) {
    return rule.recent % kTile == 0 ? Leaving::tiles : Leaving::otherwise;
  }
  if (rule.flush == Flush::whole || (rule.flush == Flush::kivi && rule.recent > 0))
    return Leaving::otherwise;
  if (rule.group % kTile == 0) return Leaving::tiles;
  const bool one = rule.flush != Flush::ring && rule.group == 1 && step == 1;
  return one ? Leaving::single : Leaving::otherwise;
}

}  // namespace

Sides encode_fast(const EncodeWork& work, Stream stream) {
  const CacheView& cache = work.first.cache;
  const EncodeSpec& spec = work.first.spec;
  Sides left;
  Type type = work.source.type;
  bool single = false;
  bool dense = true;
  Sides takes{takes_side(cache.format, cache.format.key, spec.key),
              cache.format.value.axis == Axis::token &&
                  takes_side(cache.format, cache.format.value, spec.value)};
  if (work.step == kAllTokens) {
    takes.key &= loads_words(work.source.key, work.source);
    takes.value &= loads_words(work.source.value, work.source);
    if (!work.source.key || !work.source.value || type == Type::f32) return left;
  } else {
    const Leaving how = leaving(cache.rule, work.step);
    if (work.source.key || work.source.value || how == Leaving::otherwise) return left;
    type = cache.format.window;
    single = how == Leaving::single;
    // Each layer has a matrix of its own.
    dense = false;
  }
  const Product products[2] = {product_of(spec.key), product_of(spec.value)};
  takes.key &= dense || products[0] != Product::dense;
  takes.value &= dense || products[1] != Product::dense;
  // One side alone would leave the other's part of a new block to nobody.
  if (work.step != kAllTokens && !(takes.key && takes.value)) return left;

  if (takes.key && spec.key.scale == TokenScale::l2_heads) {
    const auto kernel = type == Type::bf16 ? norm_kernel<true> : norm_kernel<false>;
    const dim3 grid(static_cast<unsigned>((work.max_tokens + 7) / 8),
                    static_cast<unsigned>(cache.batch), static_cast<unsigned>(work.count));
    if (grid.x == 0 || grid.y == 0) return {};
    kernel<<<grid, 256, 0, stream>>>(work.first, work.layers, work.source, work.step);
    KVLAB_CUDA(cudaGetLastError());
  }
  const auto run = [&](Sides sides, Product product) {
    if (type == Type::bf16) return dispatch<true>(work, sides, product, single, stream);
    dispatch<false>(work, sides, product, single, stream);
  };
  const bool alike =
      products[0] == products[1] &&
      (products[0] != Product::dense || spec.key.rotation.per_head == spec.value.rotation.per_head);
  if (takes.key && takes.value && alike) {
    run(Sides{true, true}, products[0]);
  } else {
    if (takes.key) run(Sides{true, false}, products[0]);
    if (takes.value) run(Sides{false, true}, products[1]);
  }
  return {!takes.key, !takes.value};
}

}  // namespace kvlab::kernels::cuda
