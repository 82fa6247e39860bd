#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kvlab/kernels/cpu.h"

namespace kvlab::bench {

/// A packed cache of one layer in host memory with the tokens it was made from, and queries.
class CpuCase {
 public:
  struct Shape {
    std::string format = "f1";
    int tokens = 32768;
    int q_heads = 32;
    int kv_heads = 8;
    int dim = 128;
  };

  /// Draws normal tokens, rotates by Hadamard, and encodes all but the last.
  CpuCase(const Shape& shape, int threads);
  CpuCase(const CpuCase&) = delete;

  void encode(int threads);
  void attend(int threads);

  const Shape& shape() const { return shape_; }
  const kernels::EncodeSpec& spec() const { return spec_; }
  int history() const;

  /// bf16 [kv_heads, tokens, dim].
  const std::vector<std::uint16_t>& key() const { return key_; }
  const std::vector<std::uint16_t>& value() const { return value_; }

  /// Decoded history, float32 [kv_heads, tokens, dim]: as captured, or (spec null) before the
  /// transforms are undone.
  void dequantize(const kernels::EncodeSpec* spec, float* key, float* value, int threads) const;

  const std::vector<float>& query() const { return query_; }    // [q_heads, dim]
  const std::vector<float>& output() const { return output_; }  // [q_heads, dim]

  /// Bytes that encode reads and writes, and that attend reads.
  double encode_bytes() const;
  double attend_bytes() const;

 private:
  Shape shape_;
  kernels::EncodeSpec spec_;
  std::vector<std::uint16_t> key_, value_, recent_key_, recent_value_;
  std::vector<float> query_, output_;
  std::vector<std::uint8_t> pool_;
  std::uint8_t* blocks_ = nullptr;  // in the pool, aligned
  std::vector<std::int32_t> table_;
  std::int32_t tokens_ = 0;
  kernels::CacheView view_;
};

}  // namespace kvlab::bench
