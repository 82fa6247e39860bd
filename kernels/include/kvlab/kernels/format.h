#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "kvlab/kernels/host_device.h"

namespace kvlab::kernels {

/// Storage type of parameters, norms, windows, queries and outputs.
enum class Type : std::uint8_t { f32, f16, bf16 };

KVLAB_HD constexpr int size_of(Type type) { return type == Type::f32 ? 4 : 2; }

/// What shares one scale: `channel` is a group of consecutive tokens of one channel, `token` a
/// group of consecutive channels of one token.
enum class Axis : std::uint8_t { token, channel };

/// How a code c becomes a value: none (c − M)·s with M = 2^(bits−1) − 1; value c·s + z; offset (c −
/// z)·s; codebook levels[c]·s, with 2 bits and no stored zero.
enum class Zero : std::uint8_t { none, value, offset, codebook };

/// One number a token by which the decoded key is multiplied: per KV head, or one over all heads
/// (held in every head's block so that blocks are self-contained; the copies are padding in the
/// accounts).
enum class Norm : std::uint8_t { none, head, heads };

/// The quantized form of keys or of values.
struct SideFormat {
  int bits = 2;  // 2, 4 or 8
  Axis axis = Axis::token;
  int group = 128;  // tokens on Axis::channel, channels on Axis::token: 32, 64 or 128; all of a
                    // smaller head
  Zero zero = Zero::value;
  Type params = Type::f16;

  constexpr bool operator==(const SideFormat&) const = default;
};

/// Everything that fixes the bytes of a packed cache.
struct Format {
  int dim = 128;  // 64, 128 or 256
  SideFormat key;
  SideFormat value;
  Norm norm = Norm::none;
  Type norm_type = Type::f16;
  bool norm_inverse = false;  // 1/n is stored, and decoding divides by it
  Type window = Type::bf16;   // sink and recent tokens: f16 or bf16

  constexpr bool operator==(const Format&) const = default;
};

/// The layout's number, kept in every dump of a cache. A change of layout.h raises it.
inline constexpr int kLayoutVersion = 1;

/// A sentence why no kernel serves this format, naming what it is; nothing where one does.
std::optional<std::string> refusal(const Format& format);

/// Text form as in benchmark names: "f1", "f2" or "k:channel,g64,b4;v:token,g64,b4" (with zero,
/// parameter type and norm where they are not value, f16 and none).
std::string name_of(const Format& format);

/// The format that name_of gives this name to. Throws std::invalid_argument with the part that is
/// wrong.
Format format_named(const std::string& name, int dim);

/// Per-token keys and values, one group a head row, 16-bit scale and zero: 72 bytes a token at d =
/// 128.
constexpr Format f1(int dim = 128) {
  Format format;
  format.dim = dim;
  format.key.group = format.value.group = dim < 128 ? dim : 128;
  return format;
}

/// Per-channel keys G = 32, values G = 32, one 16-bit norm a token and head: 98 bytes a token at d
/// = 128.
constexpr Format f2(int dim = 128) {
  Format format;
  format.dim = dim;
  format.key.axis = Axis::channel;
  format.key.group = format.value.group = 32;
  format.norm = Norm::head;
  return format;
}

}  // namespace kvlab::kernels
