#pragma once

#include "kvlab/kernels/format.h"
#include "kvlab/kernels/host_device.h"

/// Where everything is in a block of the packed cache. The one place for it: CPU code, CUDA kernels
/// and tests index through these functions.
///
/// A block holds `block_tokens` tokens of one sequence and KV head:
///
///   [key codes | value codes | key scales | key zeros | value scales | value zeros | norms],
///   padded to 128 bytes
///
/// Codes lie in tiles of 16 tokens × d channels, in the order in which a warp's lanes want them as
/// the A operand of mma.sync.m16n8k16 (tokens × channels for keys, channels × tokens for values):
/// lane 4g + t holds its words side by side, 16 bytes a load. In a word, bit `16h + 8s + bits·p`
/// starts a code; halves h are neighbours in k, so that one AND yields a register of two 16-bit
/// subnormals code·2^(bits·p).
namespace kvlab::kernels {

inline constexpr int kTile = 16;         // tokens of a tile
inline constexpr int kBlockAlign = 128;  // bytes

KVLAB_HD constexpr int align_up(int n, int to) { return (n + to - 1) / to * to; }

/// Tokens of one block: 64, or a whole per-channel group of 128.
KVLAB_HD constexpr int block_tokens(const Format& f) {
  return f.key.axis == Axis::channel && f.key.group > 64 ? f.key.group : 64;
}

/// Groups along the channels: 1 where groups run along tokens.
KVLAB_HD constexpr int channel_groups(const Format& f, const SideFormat& side) {
  return side.axis == Axis::token ? f.dim / side.group : 1;
}

/// Parameters of one kind (scales, or zeros) in a block.
KVLAB_HD constexpr int block_params(const Format& f, const SideFormat& side) {
  return side.axis == Axis::token ? block_tokens(f) * channel_groups(f, side)
                                  : block_tokens(f) / side.group * f.dim;
}

KVLAB_HD constexpr bool stores_zero(const SideFormat& side) {
  return side.zero == Zero::value || side.zero == Zero::offset;
}

KVLAB_HD constexpr int code_bytes(const Format& f, const SideFormat& side) {
  return block_tokens(f) * f.dim * side.bits / 8;
}

KVLAB_HD constexpr int param_bytes(const Format& f, const SideFormat& side) {
  return align_up(block_params(f, side) * size_of(side.params), 16);
}

/// Byte offsets of a block's sections.
struct Layout {
  int key_codes = 0;
  int value_codes = 0;
  int key_scale = 0, key_zero = 0;
  int value_scale = 0, value_zero = 0;
  int norm = 0;
  int bytes = 0;  // of the whole block, a multiple of kBlockAlign
};

KVLAB_HD constexpr Layout layout_of(const Format& f) {
  Layout at;
  at.value_codes = at.key_codes + code_bytes(f, f.key);
  at.key_scale = at.value_codes + code_bytes(f, f.value);
  at.key_zero = at.key_scale + param_bytes(f, f.key);
  at.value_scale = at.key_zero + (stores_zero(f.key) ? param_bytes(f, f.key) : 0);
  at.value_zero = at.value_scale + param_bytes(f, f.value);
  at.norm = at.value_zero + (stores_zero(f.value) ? param_bytes(f, f.value) : 0);
  const int end = at.norm + (f.norm == Norm::none ? 0 : block_tokens(f) * size_of(f.norm_type));
  at.bytes = align_up(end, kBlockAlign);
  return at;
}

/// Bytes that a full block needs for what it stores, without padding and the copies of a norm over
/// all heads. `kv_heads` share one such norm.
KVLAB_HD constexpr double payload_bytes(const Format& f, int kv_heads) {
  const int zeros_k = stores_zero(f.key) ? 2 : 1;
  const int zeros_v = stores_zero(f.value) ? 2 : 1;
  double bytes = code_bytes(f, f.key) + code_bytes(f, f.value);
  bytes += zeros_k * block_params(f, f.key) * size_of(f.key.params);
  bytes += zeros_v * block_params(f, f.value) * size_of(f.value.params);
  if (f.norm != Norm::none) {
    const double norms = block_tokens(f) * size_of(f.norm_type);
    bytes += f.norm == Norm::heads ? norms / kv_heads : norms;
  }
  return bytes;
}

/// 32-bit words that one lane holds of a tile.
KVLAB_HD constexpr int lane_words(int dim, int bits) { return dim * bits / 64; }

/// Words of one load of a lane: up to 16 bytes.
KVLAB_HD constexpr int load_words(int dim, int bits) {
  return lane_words(dim, bits) < 4 ? lane_words(dim, bits) : 4;
}

KVLAB_HD constexpr int tile_bytes(int dim, int bits) { return kTile * dim * bits / 8; }

/// Place of a code: byte offset of its 32-bit word from the start of its side's codes, and its
/// lowest bit in there.
struct Place {
  int byte = 0;
  int bit = 0;
};

/// A lane's register r = 4·fragment + 2·(upper half of k) + (upper half of the rows), half h of it.
KVLAB_HD constexpr Place place_in_tile(int dim, int bits, int tile, int lane, int r, int h) {
  const int per_byte = 8 / bits;
  const int word = r / (2 * per_byte);
  const int load = load_words(dim, bits);
  Place place;
  place.byte =
      tile * tile_bytes(dim, bits) + word / load * (128 * load) + lane * 4 * load + word % load * 4;
  place.bit = 16 * h + 8 * (r / per_byte % 2) + bits * (r % per_byte);
  return place;
}

/// Keys: rows are tokens, k runs over channels; lane t of a row holds channels 8t … 8t+7 of every
/// 32, so that 16-bit parameters and window keys of the same channels are one 16-byte load.
KVLAB_HD constexpr Place key_place(int dim, int bits, int token, int channel) {
  const int row = token % kTile;
  const int e = channel % 8;
  const int r = 4 * (channel / 32 * 2 + e / 4) + 2 * (e / 2 % 2) + row / 8;
  return place_in_tile(dim, bits, token / kTile, row % 8 * 4 + channel % 32 / 8, r, e % 2);
}

/// Values: rows are channels, k runs over tokens.
KVLAB_HD constexpr Place value_place(int dim, int bits, int token, int channel) {
  const int k = token % kTile;
  const int r = 4 * (channel / 16) + 2 * (k / 8) + channel / 8 % 2;
  return place_in_tile(dim, bits, token / kTile, channel % 8 * 4 + k % 8 / 2, r, k % 2);
}

/// Order of tokens in which a lane of row g finds what it needs of its eight tokens g, g + 8, … g +
/// 56 side by side.
KVLAB_HD constexpr int token_slot(int token) {
  return token / 64 * 64 + token % 8 * 8 + token % 64 / 16 * 2 + token / 8 % 2;
}

/// Index of a scale or zero within its section. One group a head row is in the order of token_slot.
KVLAB_HD constexpr int param_index(const Format& f, const SideFormat& side, int token,
                                   int channel) {
  if (side.axis == Axis::channel) return token / side.group * f.dim + channel;
  if (side.group == f.dim) return token_slot(token);
  return channel / side.group * block_tokens(f) + token;
}

/// Index of a token's norm within the norms. Never index norms by the token itself.
KVLAB_HD constexpr int norm_index(int token) { return token_slot(token); }

static_assert(layout_of(f1()).bytes == 4608 && layout_of(f2()).bytes == 6272);

}  // namespace kvlab::kernels
