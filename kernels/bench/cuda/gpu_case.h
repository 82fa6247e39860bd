#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kvlab/kernels/cache.h"
#include "kvlab/kernels/cuda_device.h"

namespace kvlab::bench {

using kernels::cuda::Stream;

/// Normal tokens and queries of one layer.
struct GpuShape {
  kernels::Format format;
  int batch = 1;
  int tokens = 4096;  // of a sequence; the mean where lengths differ
  int q_heads = 32;
  int kv_heads = 8;
  kernels::Rotation::Kind rotation = kernels::Rotation::Kind::none;
  bool permuted = false;  // blocks anywhere in the pool, else one behind the other
  bool unequal = false;   // lengths from 3/4 to 5/4 of `tokens`, of the same sum
  int sink = 0;           // with one of them: block flush, else all tokens are history
  int recent = 0;
};

/// A packed cache in GPU memory, `copies` times, with the tokens it is made from as often or, where
/// only the cache is wanted, once. The constructor encodes the first copy and copies it.
class GpuCase {
 public:
  GpuCase(const GpuShape& shape, int copies, bool many_sources);
  GpuCase(const GpuCase&) = delete;

  void encode(int copy, Stream stream) const;
  void attend(int copy, Stream stream) const;
  /// To bf16 [batch, kv_heads, most tokens, dim], as captured.
  void dequantize(int copy, Stream stream);

  /// Of one copy: blocks with their padding, as they lie in memory.
  const std::uint8_t* pool(int copy) const { return view(copy).pool; }
  std::int64_t pool_bytes() const { return pool_bytes_; }
  const void* source(int copy) const { return sources_[source_of(copy)].get(); }

  /// Bytes of all tokens as captured; of what the cache holds, windows included, padding excluded.
  double source_bytes() const;
  double cache_bytes() const;

  /// Checks against kvlab::kernels::cpu, a sentence where they fail: attention over the first and
  /// the last sequence's cache; codes and dequantized tokens of the first sequence, anew from its
  /// tokens.
  std::string wrong_attention() const;
  std::string wrong_codes() const;
  std::string wrong_tokens();

 private:
  /// A sequence's cache in host memory.
  struct HostCache;

  kernels::CacheView view(int copy) const;
  size_t source_of(int copy) const { return static_cast<size_t>(copy) % sources_.size(); }
  kernels::TokenSource token_source(const void* tokens) const;
  void make_tables();
  void place(kernels::CacheView& view, std::uint8_t* base) const;
  HostCache host_cache(int sequence) const;
  kernels::AttendArgs attend_args() const;

  GpuShape shape_;
  int most_tokens_ = 0;
  int pages_ = 0;  // of a sequence
  std::vector<std::int32_t> lengths_, table_;
  std::vector<float> matrix_;
  std::int64_t pool_bytes_ = 0, window_bytes_[2] = {0, 0}, copy_bytes_ = 0;
  kernels::CacheView view_;
  kernels::EncodeSpec spec_, host_spec_;
  kernels::cuda::AttendPlan plan_;
  std::shared_ptr<void> device_lengths_, device_table_, device_matrix_, query_, output_, scratch_,
      tokens_out_;
  std::vector<std::shared_ptr<void>> sources_, copies_;
};

}  // namespace kvlab::bench
