#include <stdexcept>
#include <string>

#include "check.h"
#include "encode_fast.cuh"
#include "encode_unit.cuh"
#include "kvlab/kernels/cuda.h"

namespace kvlab::kernels::cuda {
namespace {

constexpr int kMostThreads = 256;

int word_bytes(const Format& f) {
  const int bits = f.key.bits > f.value.bits ? f.key.bits : f.value.bits;
  return unit_tokens(f) * f.dim * bits / 8;
}

int scratch_bytes(const Format& f) {
  const bool columns = f.key.axis == Axis::channel || f.value.axis == Axis::channel;
  return word_bytes(f) + unit_tokens(f) * (8 + (columns ? 4 * f.dim : 0));
}

/// A thread block has one unit of tokens of a side and head of a sequence and layer; where a
/// token's scale runs over all heads, those of one head's keys have all heads'.
template <int N>
__global__ void __launch_bounds__(kMostThreads)
    encode_kernel(const __grid_constant__ Layer first, const Layer* layers,
                  const __grid_constant__ TokenSource source, int step, int units, int words,
                  int first_side, int sides) {
  std::int64_t index = blockIdx.x;
  const auto next = [&](int count) {
    const int digit = static_cast<int>(index % count);
    index /= count;
    return digit;
  };
  const int unit = next(units);
  const int head = next(first.cache.kv_heads);
  const Side side = next(sides) + first_side == 0 ? Side::key : Side::value;
  const int sequence = next(first.cache.batch);
  const Layer& layer = layers ? layers[index] : first;

  const Job job = make_job(layer, source, side, sequence, unit, step);
  if (job.from >= job.to) return;

  extern __shared__ __align__(16) std::uint32_t shared[];
  auto* sums = reinterpret_cast<double*>(shared + words);  // the words are a multiple of 8 bytes
  const Scratch scratch{shared, sums,
                        reinterpret_cast<float*>(sums + (job.unit_end - job.unit_begin))};
  const bool all_heads = side == Side::key && job.spec.scale == TokenScale::l2_heads;
  if (all_heads && head > 0) return;
  const int heads = all_heads ? first.cache.kv_heads : head + 1;
  if (all_heads) {
    for (int h = 0; h < heads; ++h) add_squares<N>(job, h, scratch);
    __syncthreads();
  }
  for (int h = head; h < heads; ++h) encode_head<N>(job, scratch, h);
}

void refuse(const std::string& sentence) { throw std::invalid_argument("encode: " + sentence); }

void check_side(const char* name, const SideFormat& format, const SideEncode& spec) {
  const Grid& grid = spec.grid;
  if (grid.bits != format.bits || grid.zero != format.zero || grid.params != format.params) {
    refuse(std::string(name) +
           ": the grid's bits, zero or parameter type are not those of the format");
  }
  if (spec.rotation.kind == Rotation::Kind::dense && !spec.rotation.matrix) {
    refuse(std::string(name) + ": a dense rotation needs its matrix");
  }
  if (spec.clip == Clip::calibrated && !spec.thresholds) {
    refuse(std::string(name) + ": a calibrated clip needs its thresholds");
  }
}

void check_arguments(const CacheView& cache, const EncodeSpec& spec) {
  if (const auto reason = refusal(cache.format)) refuse(*reason);
  check_side("keys", cache.format.key, spec.key);
  check_side("values", cache.format.value, spec.value);
  const Norm norm = spec.key.scale == TokenScale::none       ? Norm::none
                    : spec.key.scale == TokenScale::l2_heads ? Norm::heads
                                                             : Norm::head;
  if (norm != cache.format.norm) refuse("the keys' token scale is not the norm of the format");
  if (spec.value.scale != TokenScale::none || spec.value.center) {
    refuse("values have neither a token scale nor a centre");
  }
}

template <int N>
void launch(const EncodeWork& work, Sides sides, Stream stream) {
  const CacheView& cache = work.first.cache;
  const int units = units_of(work.max_tokens, unit_tokens(cache.format));
  const int first_side = sides.key ? 0 : 1;
  const int side_count = sides.key && sides.value ? 2 : 1;
  const std::int64_t blocks =
      std::int64_t{units} * cache.kv_heads * side_count * cache.batch * work.count;
  if (blocks == 0) return;
  if (blocks > 0x7fffffff) refuse("more work than one launch holds");
  const int bytes = scratch_bytes(cache.format);
  // A kernel must be told before it takes more than 48 KiB.
  if (bytes > 48 * 1024) {
    KVLAB_CUDA(
        cudaFuncSetAttribute(encode_kernel<N>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  }
  // A decode step moves few tokens: small thread blocks, many at a time.
  const int threads = work.max_tokens <= 8 ? 64 : kMostThreads;
  encode_kernel<N><<<static_cast<unsigned>(blocks), threads, bytes, stream>>>(
      work.first, work.layers, work.source, work.step, units, word_bytes(cache.format) / 4,
      first_side, side_count);
  KVLAB_CUDA(cudaGetLastError());
}

/// By the fast encoders what they take, by the general one the rest.
void encode_all(const EncodeWork& work, Stream stream) {
  const Sides rest = encode_fast(work, stream);
  if (!rest.key && !rest.value) return;
  switch (work.first.cache.format.dim) {
    case 64:
      return launch<2>(work, rest, stream);
    case 128:
      return launch<4>(work, rest, stream);
    default:
      return launch<8>(work, rest, stream);
  }
}

}  // namespace

void encode(const CacheView& cache, const EncodeSpec& spec, const TokenSource& source, int step,
            int max_tokens, Stream stream) {
  check_arguments(cache, spec);
  encode_all({{cache, spec}, nullptr, 1, source, step, max_tokens}, stream);
}

void flush(const Layer& first, const Layer* layers, int count, int step, int max_tokens,
           Stream stream) {
  check_arguments(first.cache, first.spec);
  encode_all({first, layers, count, TokenSource{}, step, max_tokens}, stream);
}

}  // namespace kvlab::kernels::cuda
