// Decoding steps of one layer on the CPU without their attention: the operation `append`.

#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "cpu_measure.h"
#include "kvlab/kernels/cpu.h"
#include "random_numbers.h"
#include "speed/packed_spec.h"

namespace kvlab::bench {
namespace {

using namespace kernels;

constexpr int kHeads = 8;
constexpr int kSteps = 32;  // of a round, in which one per-channel group of F2 leaves the ring
constexpr int kRounds = 7;  // samples

struct Shape {
  Format format;
  int batch = 1;
  int tokens = 4096;  // before the first step
  int steps = kSteps;
  int sink = 64;
  int recent = 256;
};

/// A layer's cache, of zeros, and the tokens of its steps. Steps come in rounds: the last one of a
/// round takes all back.
class CpuAppendCase {
 public:
  explicit CpuAppendCase(const Shape& shape);
  CpuAppendCase(const CpuAppendCase&) = delete;

  /// The next step's tokens into the cache.
  void step(int threads);

  /// Holds a round's tokens as steps leave them, or as one prefill of an empty cache does.
  void all_steps();
  void prefill();

  /// Attention of all query heads, [batch, heads, dim], after every step's tokens.
  std::vector<float> attended();

  /// Bytes that a step moves: the new tokens to the ring, those that leave it to blocks.
  double step_bytes() const;

 private:
  std::int64_t numbers_of_step() const {
    return std::int64_t{shape_.batch} * kHeads * shape_.format.dim;
  }
  /// The tokens from step `first` on.
  TokenSource source(int first) const;

  Shape shape_;
  CacheView view_;
  EncodeSpec spec_;
  int next_ = 0;  // step
  std::vector<std::int32_t> lengths_, table_;
  std::vector<std::uint8_t> pool_;
  std::vector<std::uint16_t> key_, value_;  // [steps, batch, heads, dim]
  std::vector<std::uint16_t> sink_key_, sink_value_, recent_key_, recent_value_;
};

CpuAppendCase::CpuAppendCase(const Shape& shape)
    : shape_(shape),
      spec_(speed::spec_of(shape.format, Rotation::Kind::hadamard)),
      lengths_(static_cast<size_t>(shape.batch), shape.tokens),
      key_(normals(shape.steps * numbers_of_step(), 1)),
      value_(normals(shape.steps * numbers_of_step(), 2)) {
  const Format& format = shape.format;
  const int per_block = block_tokens(format);
  const int pages = (shape.tokens + shape.steps + per_block - 1) / per_block;
  table_.resize(static_cast<size_t>(shape.batch) * static_cast<size_t>(pages));
  std::iota(table_.begin(), table_.end(), 0);
  pool_.resize(table_.size() * kHeads * static_cast<size_t>(layout_of(format).bytes) + kBlockAlign);
  const auto address = reinterpret_cast<std::uintptr_t>(pool_.data());

  view_.format = format;
  view_.rule = {Flush::block, shape.sink, shape.recent, speed::window_group(format)};
  view_.batch = shape.batch;
  view_.kv_heads = kHeads;
  view_.pool = pool_.data() + (kBlockAlign - address % kBlockAlign) % kBlockAlign;
  view_.block_table = table_.data();
  view_.table_stride = pages;
  view_.tokens = lengths_.data();
  view_.sink_capacity = shape.sink;
  view_.recent_capacity = recent_capacity(view_.rule, 1);
  view_.sink_stride = std::int64_t{kHeads} * view_.sink_capacity * format.dim;
  view_.recent_stride = std::int64_t{kHeads} * view_.recent_capacity * format.dim;
  const auto window = [&](std::vector<std::uint16_t>& rows, std::int64_t stride) {
    rows.resize(static_cast<size_t>(shape.batch * stride));
    return rows.data();
  };
  view_.sink_key = window(sink_key_, view_.sink_stride);
  view_.sink_value = window(sink_value_, view_.sink_stride);
  view_.recent_key = window(recent_key_, view_.recent_stride);
  view_.recent_value = window(recent_value_, view_.recent_stride);
}

TokenSource CpuAppendCase::source(int first) const {
  const std::int64_t dim = shape_.format.dim;
  const std::int64_t at = first * numbers_of_step();
  return {key_.data() + at, value_.data() + at, Type::bf16, kHeads * dim, dim, numbers_of_step()};
}

void CpuAppendCase::step(int threads) {
  for (std::int32_t& length : lengths_) ++length;
  cpu::encode(view_, spec_, {}, 1, threads);  // what leaves is in the ring
  cpu::write_windows(view_, source(next_), 1, threads);
  if (++next_ < shape_.steps) return;
  next_ = 0;
  for (std::int32_t& length : lengths_) length -= shape_.steps;
}

void CpuAppendCase::all_steps() {
  for (int i = 0; i < shape_.steps; ++i) step(1);
  for (std::int32_t& length : lengths_) length += shape_.steps;
}

void CpuAppendCase::prefill() {
  for (std::int32_t& length : lengths_) length += shape_.steps;
  cpu::write_windows(view_, source(0), kAllTokens, 1);
  cpu::encode(view_, spec_, source(0), kAllTokens, 1);
}

std::vector<float> CpuAppendCase::attended() {
  std::vector<float> output(static_cast<size_t>(numbers_of_step()));
  AttendArgs args;
  args.query = key_.data();
  args.q_heads = kHeads;
  args.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(shape_.format.dim)));
  args.key_rotation = spec_.key.rotation;
  args.value_rotation = spec_.value.rotation;
  args.output = output.data();
  args.output_type = Type::f32;
  cpu::attend(view_, args, 1);
  return output;
}

double CpuAppendCase::step_bytes() const {
  const double rows = 2.0 * static_cast<double>(numbers_of_step()) * 2;  // a token's, 16 bits
  const double packed =
      payload_bytes(shape_.format, kHeads) / block_tokens(shape_.format) * kHeads * shape_.batch;
  return 3 * rows + packed;
}

/// Empty where 400 steps leave what one prefill of their tokens does.
std::string wrong_steps(Shape shape) {
  shape.batch = 2;
  shape.tokens = 0;
  shape.steps = 400;
  CpuAppendCase by_step(shape), at_once(shape);
  by_step.all_steps();
  at_once.prefill();
  return by_step.attended() == at_once.attended() ? "" : "steps do not leave what a prefill does";
}

}  // namespace

void register_cpu_append() {
  for (const char* format : {"f1", "f2"}) {
    for (const int batch : {1, 8}) {
      Shape shape;
      shape.format = format_named(format, 128);
      shape.batch = batch;
      CaseName name{"append", "cpu", format, batch, shape.tokens};
      name.kv_heads = kHeads;
      name.group = shape.format.key.group;
      add_cpu_case(
          name,
          [shape](benchmark::State& state, bool cold) {
            CpuAppendCase c(shape);
            measure(
                state, cold, c.step_bytes(), wrong_steps(shape), [&] { c.step(kThreads); }, kSteps);
          },
          kRounds);
    }
  }
}

}  // namespace kvlab::bench
