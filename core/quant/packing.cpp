#include "quant/packing.h"

#include <limits>

namespace kvlab::quant {
namespace {

at::Tensor shifts(int64_t count, int64_t step, const at::Tensor& like) {
  return (at::arange(count, like.options().dtype(at::kByte)) * step).to(at::kByte);
}

std::vector<int64_t> last_split(const at::Tensor& x, int64_t rows, int64_t columns) {
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.back() = rows;
  sizes.push_back(columns);
  return sizes;
}

/// [..., n] of `from`-bit words to [..., n·from/to] of `to`-bit words, both at most 8, one dividing
/// the other.
at::Tensor combine(const at::Tensor& words, int64_t from, int64_t to) {
  const int64_t per = to / from;
  const at::Tensor split = words.reshape(last_split(words, words.size(-1) / per, per));
  return split.bitwise_left_shift(shifts(per, from, words)).sum(-1, false, at::kByte);
}

at::Tensor separate(const at::Tensor& words, int64_t from, int64_t to) {
  const int64_t per = from / to;
  const at::Tensor parts =
      words.unsqueeze(-1).bitwise_right_shift(shifts(per, to, words)).bitwise_and((1 << to) - 1);
  std::vector<int64_t> sizes = words.sizes().vec();
  sizes.back() *= per;
  return parts.reshape(sizes);
}

}  // namespace

at::Tensor pack(const at::Tensor& codes, int64_t bits) {
  if (bits == 8) return codes.clone();
  if (8 % bits == 0) return combine(codes, bits, 8);
  // Widths that do not divide a byte go through single bits.
  const at::Tensor single =
      codes.unsqueeze(-1).bitwise_right_shift(shifts(bits, 1, codes)).bitwise_and(1).flatten(-2);
  return combine(single, 1, 8);
}

at::Tensor unpack(const at::Tensor& packed, int64_t bits) {
  if (bits == 8) return packed.clone();
  if (8 % bits == 0) return separate(packed, 8, bits);
  const at::Tensor single = separate(packed, 8, 1);
  const at::Tensor split = single.reshape(last_split(single, single.size(-1) / bits, bits));
  return split.bitwise_left_shift(shifts(bits, 1, packed)).sum(-1, false, at::kByte);
}

at::ScalarType index_type(int64_t largest) {
  if (largest <= std::numeric_limits<uint8_t>::max()) return at::kByte;
  return largest <= std::numeric_limits<int16_t>::max() ? at::kShort : at::kInt;
}

}  // namespace kvlab::quant
