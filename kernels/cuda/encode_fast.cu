#include "check.h"
#include "encode_fast.cuh"
#include "fast_work.cuh"
#include "tile_product.cuh"

namespace kvlab::kernels::cuda {

/// One of encode_fast_{none,signs,dense,clip}.cu.
template <bool kBf16, Product kProduct, bool kClip>
void launch_fast(const EncodeWork& work, Sides sides, bool single, Stream stream);

namespace {

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
  const Stretch stretch{cache.pool,
                        cache.block_table + sequence * cache.table_stride,
                        from,
                        sequence,
                        view.rule.sink < tokens ? view.rule.sink : tokens,
                        span.begin,
                        span.end,
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

template <bool kBf16, bool kClip>
void dispatch(const EncodeWork& work, Sides sides, Product product, bool single, Stream stream) {
  switch (product) {
    case Product::none:
      return launch_fast<kBf16, Product::none, kClip>(work, sides, single, stream);
    case Product::signs:
      return launch_fast<kBf16, Product::signs, kClip>(work, sides, single, stream);
    case Product::dense:
      return launch_fast<kBf16, Product::dense, kClip>(work, sides, single, stream);
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

/// Where all groups run along channels, one threshold for all numbers of a token.
bool takes_clip(const Format& format, const SideFormat& side, const SideEncode& spec) {
  if (spec.clip == Clip::none) return true;
  if (format.key.axis != Axis::token || format.value.axis != Axis::token) return false;
  return spec.clip == Clip::row || (spec.clip == Clip::group && side.group == kFastDim);
}

bool takes_side(const Format& format, const SideFormat& side, const SideEncode& spec) {
  if (format.dim != kFastDim || side.bits != 2 || side.zero == Zero::codebook) return false;
  if (!takes_clip(format, side, spec) || spec.center) return false;
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
    const bool clips = (sides.key && spec.key.clip != Clip::none) ||
                       (sides.value && spec.value.clip != Clip::none);
    const auto launch = type == Type::bf16
                            ? (clips ? dispatch<true, true> : dispatch<true, false>)
                            : (clips ? dispatch<false, true> : dispatch<false, false>);
    launch(work, sides, product, single, stream);
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
