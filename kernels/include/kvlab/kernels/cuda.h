#pragma once

#include <cstdint>
#include <string>

#include "kvlab/kernels/cache.h"

struct CUstream_st;

/// The packed cache on an NVIDIA GPU (compute capability 8.0 and up). All pointers are device
/// memory. A run allocates nothing and synchronises nothing, so it can be captured in a graph; what
/// it needs besides is in its plan, which depends on capacities only. Failing CUDA calls throw
/// std::runtime_error with file, line and call.
namespace kvlab::kernels::cuda {

using Stream = CUstream_st*;

/// Whether a GPU that these kernels run on is there, and if not, why.
bool available(std::string* why = nullptr);

/// Copies the step's full-precision tokens to the sink and the recent ring (cpu.h).
void write_windows(const CacheView& cache, const TokenSource& source, int step, int max_step,
                   Stream stream);

/// Quantizes the tokens that the step moves into the history (cpu.h). `max_tokens` bounds how many
/// they are.
void encode(const CacheView& cache, const EncodeSpec& spec, const TokenSource& source, int step,
            int max_tokens, Stream stream);

/// A layer of a model, for one launch over all of them.
struct Layer {
  CacheView cache;
  EncodeSpec spec;
};

/// encode from the recent rings of all layers in one launch. `layers` is device memory; all share
/// one format, rule, batch and number of heads, given by `first` (a host copy of layers[0]).
void flush(const Layer& first, const Layer* layers, int count, int step, int max_tokens,
           Stream stream);

/// tokens[b] += step for all b.
void advance(std::int32_t* tokens, int batch, int step, Stream stream);

/// How attend divides its work.
struct AttendPlan {
  int instance = -1;        // of the table of tuned kernels; -1: the run-time kernel
  int rows = 4;             // query rows that share a pass over the cache
  int row_tiles = 1;        // passes
  int splits = 1;           // blocks that share a sequence's history
  int window = 0;           // more blocks, which share the tokens held in 16 bits
  bool inside = false;      // the history's blocks share those too
  int warps = 8;            // of a block
  bool interleave = false;  // splits take records in turn instead of a stretch each
  bool scheduled = false;   // schedule divides the blocks by length
  bool bulk = true;         // copies by the bulk engine (sm_90 and up)
  std::int64_t scratch_bytes =
      0;  // zeroed by the caller once, before the first run; 256-byte aligned
};

/// What the plan must know of the GPU.
struct Device {
  int multiprocessors = 132;
  int major = 9;
};
Device device();

/// What a plan may take for granted of the sequences.
enum class Lengths { alike, unlike };

/// Plan for sequences of at most max_tokens tokens: pure, and the same for the same capacities.
/// Lengths::unlike: with a schedule where a tuned kernel has one, batch 2 to 1,024; it takes a
/// little time itself, and up to 6% of attend's. Throws std::invalid_argument where no kernel
/// serves them. The environment variable KVLAB_CUDA_PATH=sm_80 keeps to what compute capability 8.0
/// has, KVLAB_CUDA_PATH=runtime to the run-time kernel.
AttendPlan plan_attend(const CacheView& cache, const AttendArgs& args, int max_tokens,
                       const Device& device, Lengths lengths = Lengths::alike);

/// Divides the plan's blocks among the sequences by their present lengths, for the runs that follow
/// with this scratch memory; until the first call each sequence has the same number of blocks. It
/// changes no result but the order of sums, so once for all layers of a step, or for many steps, is
/// enough: tokens that came since are the last block's of their sequence. Does nothing where the
/// plan is not `scheduled`.
void schedule(const AttendPlan& plan, const CacheView& cache, void* scratch, Stream stream);

void attend(const AttendPlan& plan, const CacheView& cache, const AttendArgs& args, void* scratch,
            Stream stream);

/// cpu.h's dequantize.
void dequantize(const CacheView& cache, const EncodeSpec* spec, void* key, void* value, Type type,
                std::int64_t row_capacity, Stream stream);

}  // namespace kvlab::kernels::cuda
