// Decoding steps of a whole model without their attention: the operation `append`.

#include <fmt/format.h>

#include <cmath>
#include <numeric>

#include "cases.h"
#include "kvlab/kernels/cpu.h"
#include "speed/packed_spec.h"
#include "timing.h"
#include "traffic.h"

namespace kvlab::bench {
namespace {

using namespace kernels;

constexpr int kHeads = 8;
constexpr int kSteps = 128;

struct AppendShape {
  Format format;
  int layers = 36;
  int batch = 48;
  int tokens = 4096;  // before the first step
  int sink = 64;
  int recent = 256;
};

/// The caches of a model's layers, of zeros, and the tokens of kSteps steps, which all layers
/// share. Steps come in rounds: the last one of a round takes all back.
class AppendCase {
 public:
  explicit AppendCase(const AppendShape& shape);
  AppendCase(const AppendCase&) = delete;

  void step(int i, Stream stream) const;

  /// Runs a round on the CPU too and compares the last layer, a sentence where they differ.
  std::string wrong() const;

  /// Bytes that a step moves in a layer: the new tokens to the ring, those that leave it to blocks.
  double step_bytes() const;

 private:
  std::int64_t numbers_of_step() const {
    return std::int64_t{shape_.batch} * kHeads * shape_.format.dim;
  }
  TokenSource source(const void* tokens, int step) const;
  CacheView with_memory(CacheView view, std::uint8_t* base) const;

  AppendShape shape_;
  CacheView view_;
  EncodeSpec spec_;
  std::vector<std::int32_t> lengths_, table_;
  std::int64_t pool_bytes_ = 0, ring_bytes_ = 0, sink_bytes_ = 0;
  std::shared_ptr<void> device_lengths_, device_table_, tokens_, layers_;
  std::vector<std::shared_ptr<void>> memory_;
  std::vector<cuda::Layer> host_layers_;
};

AppendCase::AppendCase(const AppendShape& shape)
    : shape_(shape),
      spec_(speed::spec_of(shape.format, Rotation::Kind::hadamard)),
      lengths_(static_cast<size_t>(shape.batch), shape.tokens) {
  const Format& format = shape.format;
  const int per_block = block_tokens(format);
  const int pages = (shape.tokens + kSteps + per_block - 1) / per_block;
  table_.resize(static_cast<size_t>(shape.batch * pages));
  std::iota(table_.begin(), table_.end(), 0);

  view_.format = format;
  view_.rule = {Flush::block, shape.sink, shape.recent, speed::window_group(format)};
  view_.batch = shape.batch;
  view_.kv_heads = kHeads;
  view_.table_stride = pages;
  view_.sink_capacity = shape.sink;
  view_.recent_capacity = recent_capacity(view_.rule, 1);
  view_.sink_stride = std::int64_t{kHeads} * view_.sink_capacity * format.dim;
  view_.recent_stride = std::int64_t{kHeads} * view_.recent_capacity * format.dim;
  pool_bytes_ = std::int64_t{shape.batch} * pages * kHeads * layout_of(format).bytes;
  ring_bytes_ = 2 * shape.batch * view_.recent_stride;
  sink_bytes_ = 2 * shape.batch * view_.sink_stride;

  const auto place = [](const std::vector<std::int32_t>& host) {
    const auto bytes = static_cast<std::int64_t>(host.size() * sizeof(std::int32_t));
    auto memory = cuda::allocate(bytes);
    cuda::copy_in(memory.get(), host.data(), bytes);
    return memory;
  };
  device_lengths_ = place(lengths_);
  device_table_ = place(table_);
  view_.tokens = static_cast<const std::int32_t*>(device_lengths_.get());
  view_.block_table = static_cast<const std::int32_t*>(device_table_.get());
  tokens_ = cuda::allocate(2 * 2 * kSteps * numbers_of_step());
  fill_normal(tokens_.get(), 2 * kSteps * numbers_of_step(), 3, nullptr);
  for (int layer = 0; layer < shape.layers; ++layer) {
    memory_.push_back(cuda::allocate(pool_bytes_ + 2 * (ring_bytes_ + sink_bytes_)));
    host_layers_.push_back(
        {with_memory(view_, static_cast<std::uint8_t*>(memory_.back().get())), spec_});
  }
  const auto bytes = static_cast<std::int64_t>(host_layers_.size() * sizeof(cuda::Layer));
  layers_ = cuda::allocate(bytes);
  cuda::copy_in(layers_.get(), host_layers_.data(), bytes);
}

CacheView AppendCase::with_memory(CacheView view, std::uint8_t* base) const {
  view.pool = base;
  view.recent_key = reinterpret_cast<std::uint16_t*>(base + pool_bytes_);
  view.recent_value = reinterpret_cast<std::uint16_t*>(base + pool_bytes_ + ring_bytes_);
  view.sink_key = reinterpret_cast<std::uint16_t*>(base + pool_bytes_ + 2 * ring_bytes_);
  view.sink_value =
      reinterpret_cast<std::uint16_t*>(base + pool_bytes_ + 2 * ring_bytes_ + sink_bytes_);
  return view;
}

TokenSource AppendCase::source(const void* tokens, int step) const {
  const auto* key = static_cast<const std::uint16_t*>(tokens) + 2 * step * numbers_of_step();
  const std::int64_t dim = shape_.format.dim;
  return {key, key + numbers_of_step(), Type::bf16, kHeads * dim, dim, dim};
}

void AppendCase::step(int i, Stream stream) const {
  auto* lengths = static_cast<std::int32_t*>(device_lengths_.get());
  cuda::advance(lengths, shape_.batch, 1, stream);
  cuda::flush(host_layers_.front(), static_cast<const cuda::Layer*>(layers_.get()), shape_.layers,
              1, view_.rule.group, stream);
  for (const cuda::Layer& layer : host_layers_) {
    cuda::write_windows(layer.cache, source(tokens_.get(), i % kSteps), 1, 1, stream);
  }
  if (i % kSteps == kSteps - 1) cuda::advance(lengths, shape_.batch, -kSteps, stream);
}

std::string AppendCase::wrong() const {
  for (int i = 0; i < kSteps; ++i) step(i, nullptr);
  std::vector<std::uint16_t> tokens(static_cast<size_t>(2 * kSteps * numbers_of_step()));
  cuda::copy_out(tokens.data(), tokens_.get(), static_cast<std::int64_t>(2 * tokens.size()));

  const auto bytes = static_cast<size_t>(pool_bytes_ + 2 * (ring_bytes_ + sink_bytes_));
  std::vector<std::uint8_t> memory[2] = {std::vector<std::uint8_t>(bytes + kBlockAlign),
                                         std::vector<std::uint8_t>(bytes + kBlockAlign)};
  std::vector<std::int32_t> lengths(lengths_);
  CacheView views[2];
  for (int i = 0; i < 2; ++i) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory[i].data());
    std::uint8_t* base = memory[i].data() + (kBlockAlign - address % kBlockAlign) % kBlockAlign;
    views[i] = with_memory(view_, base);
    views[i].tokens = lengths.data();
    views[i].block_table = table_.data();
  }
  cuda::copy_out(views[0].pool, memory_.back().get(), static_cast<std::int64_t>(bytes));
  for (int i = 0; i < kSteps; ++i) {
    for (std::int32_t& length : lengths) ++length;
    cpu::encode(views[1], spec_, {}, 1, 1);
    cpu::write_windows(views[1], source(tokens.data(), i), 1, 1);
  }

  const std::int64_t rows = lengths.front();
  const auto side = static_cast<size_t>(rows * numbers_of_step());
  std::vector<float> decoded[2];
  for (int i = 0; i < 2; ++i) {
    decoded[i].resize(2 * side);
    cpu::dequantize(views[i], nullptr, decoded[i].data(), decoded[i].data() + side, Type::f32, rows,
                    1);
  }
  // Ties and the last bit of a parameter may fall either way.
  constexpr float kApart = 1e-3f;
  constexpr double kMost = 1e-3;
  double apart = 0;
  for (size_t i = 0; i < 2 * side; ++i) {
    apart += !(std::fabs(decoded[0][i] - decoded[1][i]) < kApart);
  }
  apart /= 2.0 * kSteps * static_cast<double>(numbers_of_step());
  return apart < kMost ? "" : fmt::format("a share of {:.2g} of the codes is not the CPU's", apart);
}

double AppendCase::step_bytes() const {
  const double rows = 2.0 * static_cast<double>(numbers_of_step()) * 2;  // a token's, 16 bits
  const double packed =
      payload_bytes(shape_.format, kHeads) / block_tokens(shape_.format) * kHeads * shape_.batch;
  return 3 * rows + packed;
}

}  // namespace

void register_cuda_append() {
  for (const char* format : {"f1", "f2"}) {
    AppendShape shape;
    shape.format = format_named(format, 128);
    CaseName name{"append", "cuda", format, shape.batch, shape.tokens};
    name.kv_heads = kHeads;
    name.group = shape.format.key.group;
    name.variant = fmt::format("layers:{}", shape.layers);
    add_case(name, [shape](benchmark::State& state) {
      AppendShape small = shape;
      small.layers = 2;
      small.batch = 2;
      small.tokens = 400;
      if (const std::string wrong = AppendCase(small).wrong(); !wrong.empty()) {
        return state.SkipWithError(wrong.c_str());
      }
      const AppendCase c(shape);
      std::vector<double> samples =
          cuda::time_graph([&](int i, Stream stream) { c.step(i, stream); }, kSteps, kSamples);
      for (double& nanoseconds : samples) nanoseconds /= shape.layers;
      report(state, samples, c.step_bytes());
    });
  }
}

}  // namespace kvlab::bench
