#include "cpu_case.h"

#include <cmath>
#include <numeric>

#include "random_numbers.h"
#include "speed/packed_spec.h"

namespace kvlab::bench {
using namespace kernels;

CpuCase::CpuCase(const Shape& shape, int threads) : shape_(shape), tokens_(shape.tokens) {
  const Format format = format_named(shape.format, shape.dim);
  spec_ = speed::spec_of(format, Rotation::Kind::hadamard);

  const std::int64_t rows = std::int64_t{shape.kv_heads} * shape.tokens;
  key_ = normals(rows * shape.dim, 1);
  value_ = normals(rows * shape.dim, 2);
  for (const std::uint16_t bits : normals(std::int64_t{shape.q_heads} * shape.dim, 3)) {
    query_.push_back(from_bf16(bits));
  }
  output_.resize(query_.size());

  const int per_block = block_tokens(format);
  const int pages = (shape.tokens + per_block - 1) / per_block;
  const size_t bytes = static_cast<size_t>(layout_of(format).bytes) * static_cast<size_t>(pages) *
                       static_cast<size_t>(shape.kv_heads);
  pool_.resize(bytes + kBlockAlign);
  const auto address = reinterpret_cast<std::uintptr_t>(pool_.data());
  blocks_ = pool_.data() + (kBlockAlign - address % kBlockAlign) % kBlockAlign;
  table_.resize(static_cast<size_t>(pages));
  std::iota(table_.begin(), table_.end(), 0);

  view_.format = format;
  view_.rule.group = speed::window_group(format);
  view_.batch = 1;
  view_.kv_heads = shape.kv_heads;
  view_.pool = blocks_;
  view_.block_table = table_.data();
  view_.table_stride = pages;
  view_.recent_capacity = recent_capacity(view_.rule, 1);
  recent_key_.resize(static_cast<size_t>(shape.kv_heads) * view_.recent_capacity * shape.dim);
  recent_value_ = recent_key_;
  view_.recent_key = recent_key_.data();
  view_.recent_value = recent_value_.data();
  view_.tokens = &tokens_;
  encode(threads);
}

int CpuCase::history() const { return history_ends(view_.rule, tokens_).key; }

void CpuCase::encode(int threads) {
  const auto rows = static_cast<std::int64_t>(shape_.tokens) * shape_.dim;
  const TokenSource source{key_.data(), value_.data(), Type::bf16, rows * shape_.kv_heads,
                           rows,        shape_.dim};
  cpu::write_windows(view_, source, kAllTokens, threads);
  cpu::encode(view_, spec_, source, kAllTokens, threads);
}

void CpuCase::attend(int threads) {
  AttendArgs args;
  args.query = query_.data();
  args.query_type = args.output_type = Type::f32;
  args.q_heads = shape_.q_heads;
  args.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(shape_.dim)));
  args.key_rotation = spec_.key.rotation;
  args.value_rotation = spec_.value.rotation;
  args.output = output_.data();
  cpu::attend(view_, args, threads);
}

void CpuCase::dequantize(const EncodeSpec* spec, float* key, float* value, int threads) const {
  cpu::dequantize(view_, spec, key, value, Type::f32, shape_.tokens, threads);
}

double CpuCase::encode_bytes() const {
  const double elements = 2.0 * shape_.kv_heads * shape_.tokens * shape_.dim;
  return elements * sizeof(std::uint16_t) + attend_bytes();
}

double CpuCase::attend_bytes() const {
  const double blocks =
      static_cast<double>(history()) / block_tokens(view_.format) * shape_.kv_heads;
  return blocks * payload_bytes(view_.format, shape_.kv_heads);
}

}  // namespace kvlab::bench
