#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "device_memory.h"
#include "kvlab/kernels/cpu.h"
#include "kvlab/kernels/cuda.h"

/// The same cache twice, in host memory and on the GPU, fed with the same tokens.
namespace kvlab::gpu_check {

using namespace kvlab::kernels;

/// How a cache is made and what is done before its grids.
struct Setup {
  Format format;
  WindowRule rule;
  int batch = 3;
  int kv_heads = 2;
  int max_tokens = 64;
  int step_tokens = 1;  // most tokens of a step that is read from the ring
  Type source = Type::bf16;
  Rotation::Kind key_rotation = Rotation::Kind::none;
  Rotation::Kind value_rotation = Rotation::Kind::none;
  bool per_head = false;  // of dense rotations
  bool center = false;
  TokenScale scale = TokenScale::none;
  bool scale_first = false;
  Clip clip = Clip::none;
  bool integer_zero = false;
  bool half_up = false;
  float range_ratio = 1.0f;
};

/// Deterministic numbers; equal on all machines.
class Numbers {
 public:
  explicit Numbers(std::uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 1) {}
  std::uint64_t bits();
  float uniform();  // [0, 1)
  float normal();

 private:
  std::uint64_t state_;
};

/// An array in both memories.
template <class T>
struct Both {
  std::vector<T> host;
  DeviceArray<T> device;

  explicit Both(std::vector<T> values) : host(std::move(values)), device(host) {}
  /// Poisoned.
  explicit Both(std::size_t size) : device(size) {
    host.resize(size);
    if (size > 0) std::memset(static_cast<void*>(host.data()), 0xff, size * sizeof(T));
  }
};

/// Keys and values of steps, [batch, kv_heads, n, d] with rows of one head `d + 8` apart.
struct Tokens {
  Both<std::uint8_t> key, value;
  TokenSource on_host, on_device;
};

class Twin {
 public:
  explicit Twin(const Setup& setup);

  CacheView host, device;
  EncodeSpec host_spec, device_spec;

  void set_tokens(const std::vector<int>& tokens);
  const std::vector<int>& tokens() const { return tokens_.host; }
  std::int32_t* device_tokens() const { return tokens_.device.data(); }

  /// Random tokens with outlier channels, a constant row, a zero row and a row with −0 among them.
  std::unique_ptr<Tokens> draw(int count, std::uint64_t seed) const;

  /// Differences between the two pools, one sentence each. Where `exact` all bytes must be equal;
  /// else codes may differ by one step, few of them, and parameters by one rounding. `note` gets
  /// the count of differing codes.
  std::vector<std::string> compare_pools(bool exact, std::string& note) const;
  std::vector<std::string> compare_windows() const;

  /// Copies the host's pool and windows to the GPU.
  void copy_to_device();

 private:
  Setup setup_;
  Both<std::uint8_t> pool_;
  Both<std::int32_t> table_, tokens_;
  Both<std::uint16_t> sink_key_, sink_value_, recent_key_, recent_value_;
  Both<float> key_matrix_, value_matrix_, center_, thresholds_;
  int pages_;
};

}  // namespace kvlab::gpu_check
