#include "data/draws.h"

#include <algorithm>

#include "data/exact_math.h"
#include "data/philox.h"

namespace kvlab::data {
namespace {

constexpr int kBlockBits = 12;  // blocks of four numbers in a row

}  // namespace

Draws::Draws(int64_t seed, int64_t passage)
    : key_{static_cast<uint32_t>(seed), static_cast<uint32_t>(static_cast<uint64_t>(seed) >> 32)},
      passage_(static_cast<uint32_t>(passage)) {}

void Draws::normals(Stream stream, uint64_t row, int64_t count, double* out) const {
  for (int64_t start = 0; start < count; start += 4) {
    const uint64_t block = (row << kBlockBits) | static_cast<uint64_t>(start / 4);
    const auto words = philox4x32({static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
                                   static_cast<uint32_t>(stream), passage_},
                                  {key_[0], key_[1]});
    const int64_t here = std::min<int64_t>(4, count - start);
    for (int64_t i = 0; i < here; ++i) out[start + i] = normal_from(words[static_cast<size_t>(i)]);
  }
}

double Draws::normal(Stream stream, uint64_t row) const {
  double number = 0.0;
  normals(stream, row, 1, &number);
  return number;
}

uint64_t row_of(int64_t batch, int64_t head, int64_t token) {
  return ((static_cast<uint64_t>(batch) << 12 | static_cast<uint64_t>(head)) << 24) +
         static_cast<uint64_t>(token);
}

}  // namespace kvlab::data
