// Attention of one token a sequence over the packed cache, beside a plain read of the same bytes
// and libtorch's attention over 16-bit tokens: the operation `decode`.

#include <fmt/format.h>

#include <cstdio>
#include <set>

#include "cases.h"
#include "gpu_case.h"
#include "timing.h"
#include "torch_attention.h"
#include "traffic.h"

namespace kvlab::bench {
namespace {

using kernels::Rotation;

struct Size {
  int batch, tokens;
};
constexpr Size kHeadline[] = {{1, 4096}, {1, 32768}, {1, 131072}, {48, 4096}, {8, 32768}};
constexpr Size kLarge[] = {{1, 131072}, {48, 4096}, {8, 32768}};

struct Model {
  int q_heads = 32, kv_heads = 8, dim = 128;
};

CaseName case_name(const std::string& backend, const std::string& format, const Size& size,
                   const Model& model, bool cold, const std::string& variant = "") {
  CaseName name{"decode", backend, format, size.batch, size.tokens};
  name.q_heads = model.q_heads;
  name.kv_heads = model.kv_heads;
  name.dim = model.dim;
  name.cold = cold;
  name.variant = variant;
  return name;
}

GpuShape shape_of(const std::string& format, const Size& size, const Model& model) {
  GpuShape shape;
  shape.format = kernels::format_named(format, model.dim);
  shape.batch = size.batch;
  shape.tokens = size.tokens;
  shape.q_heads = model.q_heads;
  shape.kv_heads = model.kv_heads;
  return shape;
}

double all_bytes(const GpuShape& shape) {
  return static_cast<double>(shape.batch) * shape.tokens * shape.kv_heads *
         kernels::payload_bytes(shape.format, shape.kv_heads) / kernels::block_tokens(shape.format);
}

void add_packed(const std::string& format, const GpuShape& shape, bool cold,
                const std::string& variant = "") {
  CaseName name = case_name("cuda", format, {shape.batch, shape.tokens},
                            {shape.q_heads, shape.kv_heads, shape.format.dim}, cold, variant);
  name.group = shape.format.key.group;
  add_case(name, [shape, cold](benchmark::State& state) {
    const int copies = copies_of(all_bytes(shape), cold);
    const GpuCase c(shape, copies, false);
    if (const std::string wrong = c.wrong_attention(); !wrong.empty()) {
      return state.SkipWithError(wrong.c_str());
    }
    report(state, time_rotating(copies, [&](int copy, Stream stream) { c.attend(copy, stream); }),
           c.cache_bytes());
  });
}

/// Reads the blocks of that cache and does nothing with them.
void add_read(const std::string& format, const GpuShape& shape, bool cold) {
  CaseName name = case_name("read", format, {shape.batch, shape.tokens},
                            {shape.q_heads, shape.kv_heads, shape.format.dim}, cold);
  name.group = shape.format.key.group;
  add_case(name, [shape, cold](benchmark::State& state) {
    const int copies = copies_of(all_bytes(shape), cold);
    const GpuCase c(shape, copies, false);
    const int multiprocessors = kernels::cuda::device().multiprocessors;
    report(state,
           time_fastest(kReadWays, copies,
                        [&](int way, int copy, Stream stream) {
                          read_only(way, c.pool(copy), c.pool_bytes(), multiprocessors, stream);
                        }),
           static_cast<double>(c.pool_bytes()));
  });
}

void add_torch(const char* backend, const Size& size, const Model& model, bool cold) {
  // Shapes of several groups of cases meet in one baseline.
  static std::set<std::string> known;
  const CaseName name = case_name(backend, "bf16", size, model, cold);
  if (!known.insert(text_of(name)).second) return;
  add_case(name, [=, kind = std::string(backend)](benchmark::State& state) {
    const double bytes = 4.0 * size.batch * size.tokens * model.kv_heads * model.dim;
    const int copies = copies_of(bytes, cold);
    report(state,
           time_torch_attention(kind,
                                {size.batch, size.tokens, model.q_heads, model.kv_heads, model.dim},
                                copies, launches_of(copies), kSamples),
           bytes);
  });
}

/// The table of the README: both formats, all baselines, cold and hot.
void add_headline(bool torch) {
  for (const bool cold : {true, false}) {
    for (const Size& size : kHeadline) {
      for (const char* format : {"f1", "f2"}) {
        const GpuShape shape = shape_of(format, size, {});
        add_packed(format, shape, cold);
        add_read(format, shape, cold);
      }
      if (!torch) continue;
      add_torch("torch_cudnn", size, {}, cold);
      add_torch("torch_flash", size, {}, cold);
    }
  }
}

/// Blocks anywhere in the pool, sequences of different lengths, 16-bit windows, a rotation.
void add_variants() {
  for (const char* format : {"f1", "f2"}) {
    for (const Size& size : {Size{8, 32768}, Size{48, 4096}}) {
      GpuShape shape = shape_of(format, size, {});
      shape.permuted = true;
      add_packed(format, shape, true, "case:paged");
      shape.unequal = true;
      add_packed(format, shape, true, "case:paged_unequal");
      shape.permuted = false;
      add_packed(format, shape, true, "case:unequal");
    }
    for (const Size& size : kHeadline) {
      GpuShape windows = shape_of(format, size, {});
      windows.sink = 64;
      windows.recent = 256;
      add_packed(format, windows, true, "case:windows_64_256");
    }
    for (const Size& size : {Size{1, 32768}, Size{48, 4096}}) {
      GpuShape rotated = shape_of(format, size, {});
      rotated.rotation = Rotation::Kind::hadamard;
      add_packed(format, rotated, true, "rotation:hadamard");
    }
  }
}

void add_shapes(bool torch) {
  const auto add = [&](const std::string& format, const Model& model) {
    for (const Size& size : kLarge) {
      add_packed(format, shape_of(format, size, model), true);
      if (torch) add_torch("torch_cudnn", size, model, true);
    }
  };
  for (const char* format : {"f1", "f2"}) {
    for (const int group : {1, 2, 8, 16}) add(format, {8 * group, 8, 128});
    for (const int dim : {64, 256}) add(format, {32, 8, dim});
  }
  for (const char* format :
       {"k:token,g64,b2;v:token,g64,b2", "k:channel,g64,b2;v:token,g64,b2",
        "k:token,g128,b4;v:token,g128,b4", "k:channel,g32,b4;v:token,g32,b4"}) {
    add(format, {});
  }
}

/// Contexts of one sequence and batches of 4K tokens, where the headline has them not.
void add_sweeps(bool torch) {
  std::vector<Size> sizes;
  for (const int tokens : {1024, 2048, 8192, 16384, 65536}) sizes.push_back({1, tokens});
  for (const int batch : {2, 4, 8, 16, 32, 64, 128, 256}) sizes.push_back({batch, 4096});
  for (const Size& size : sizes) {
    for (const char* format : {"f1", "f2"}) {
      add_packed(format, shape_of(format, size, {}), true);
    }
    if (torch) add_torch("torch_cudnn", size, {}, true);
  }
}

}  // namespace

void register_cuda_decode() {
  std::string why;
  const bool torch = has_torch_attention(&why);
  if (!torch) std::fprintf(stderr, "kvlab_bench: no torch baselines on the GPU: %s\n", why.c_str());
  add_headline(torch);
  add_variants();
}

void register_cuda_shapes() {
  std::string why;
  const bool torch = has_torch_attention(&why);
  add_shapes(torch);
  add_sweeps(torch);
}

}  // namespace kvlab::bench
