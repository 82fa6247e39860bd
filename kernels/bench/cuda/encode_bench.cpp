// Prefills of the packed cache beside a kernel that only moves the same bytes, and the cache back
// as 16 bits: the operations `encode` and `dequantize`.

#include "cases.h"
#include "gpu_case.h"
#include "timing.h"
#include "traffic.h"

namespace kvlab::bench {
namespace {

using kernels::Rotation;

constexpr int kCheckedTokens = 2048;

// f1 with a norm has no name of its own.
constexpr const char* kNormedF1 = "k:token,g128,b2;v:token,g128,b2;norm:head";

CaseName case_name(const char* operation, const char* backend, const std::string& format,
                   const GpuShape& shape, const std::string& variant) {
  CaseName name{operation, backend, format, shape.batch, shape.tokens};
  name.q_heads = shape.q_heads;
  name.kv_heads = shape.kv_heads;
  name.dim = shape.format.dim;
  name.group = shape.format.key.group;
  name.variant = variant;
  return name;
}

GpuShape shape_of(const std::string& format, int tokens, Rotation::Kind rotation) {
  GpuShape shape;
  shape.format = kernels::format_named(format, 128);
  shape.tokens = tokens;
  shape.rotation = rotation;
  return shape;
}

/// The same with few tokens, for the check.
GpuShape small(GpuShape shape) {
  shape.tokens = kCheckedTokens;
  return shape;
}

/// Copies of the tokens and of the cache that they make.
int copies_for(const GpuShape& shape) {
  const double bytes =
      static_cast<double>(shape.tokens) * shape.kv_heads *
      (4.0 * shape.format.dim + static_cast<double>(kernels::layout_of(shape.format).bytes) /
                                    kernels::block_tokens(shape.format));
  return copies_of(bytes, true);
}

void add_encode(const std::string& format, int tokens, Rotation::Kind rotation,
                const std::string& variant) {
  const GpuShape shape = shape_of(format, tokens, rotation);
  add_case(case_name("encode", "cuda", format, shape, variant), [shape](benchmark::State& state) {
    if (const std::string wrong = GpuCase(small(shape), 1, true).wrong_codes(); !wrong.empty()) {
      return state.SkipWithError(wrong.c_str());
    }
    const int copies = copies_for(shape);
    const GpuCase c(shape, copies, true);
    report(state, time_rotating(copies, [&](int copy, Stream stream) { c.encode(copy, stream); }),
           c.source_bytes() + c.cache_bytes());
  });
}

/// Moves what an encoder of this format reads and writes.
void add_copy(const std::string& format, int tokens) {
  const GpuShape shape = shape_of(format, tokens, Rotation::Kind::none);
  add_case(case_name("encode", "copy", format, shape, ""), [shape](benchmark::State& state) {
    const int copies = copies_for(shape);
    const GpuCase c(shape, copies, true);
    const auto in = static_cast<std::int64_t>(c.source_bytes());
    const auto out = static_cast<std::int64_t>(c.cache_bytes()) / 16 * 16;
    const int multiprocessors = kernels::cuda::device().multiprocessors;
    report(state,
           time_fastest(kMoveWays, copies,
                        [&](int way, int copy, Stream stream) {
                          move_bytes(way, c.source(copy), in,
                                     const_cast<std::uint8_t*>(c.pool(copy)), out, multiprocessors,
                                     stream);
                        }),
           static_cast<double>(in + out));
  });
}

void add_dequantize(const std::string& format, int tokens) {
  const GpuShape shape = shape_of(format, tokens, Rotation::Kind::hadamard);
  add_case(
      case_name("dequantize", "cuda", format, shape, "rotation:hadamard"),
      [shape](benchmark::State& state) {
        const std::string wrong = GpuCase(small(shape), 1, false).wrong_tokens();
        if (!wrong.empty()) return state.SkipWithError(wrong.c_str());
        const int copies = copies_for(shape);
        GpuCase c(shape, copies, false);
        report(state,
               time_rotating(copies, [&](int copy, Stream stream) { c.dequantize(copy, stream); }),
               c.source_bytes() + c.cache_bytes());
      });
}

}  // namespace

void register_cuda_encode() {
  for (const int tokens : {32768, 131072}) {
    for (const char* format : {"f1", kNormedF1, "f2"}) {
      add_copy(format, tokens);
      add_encode(format, tokens, Rotation::Kind::hadamard, "rotation:hadamard");
      add_encode(format, tokens, Rotation::Kind::dense, "rotation:dense");
    }
    for (const char* format : {"f1", "f2"}) {
      add_encode(format, tokens, Rotation::Kind::none, "rotation:none");
      add_dequantize(format, tokens);
    }
  }
}

}  // namespace kvlab::bench
