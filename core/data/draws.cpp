#include "data/draws.h"

#include <algorithm>
#include <array>

#include "data/exact_math.h"
#include "data/philox.h"

namespace kvlab::data {
namespace {

constexpr int kBlockBits = 12;  // blocks of four numbers in a row
constexpr size_t kMostColumns = size_t{4} << kBlockBits;

}  // namespace

Draws::Draws(int64_t seed, int64_t passage)
    : key_{static_cast<uint32_t>(seed), static_cast<uint32_t>(static_cast<uint64_t>(seed) >> 32)},
      passage_(static_cast<uint32_t>(passage)) {}

void Draws::normals(Stream stream, uint64_t row, int64_t count, double* out) const {
  std::array<uint32_t, kMostColumns> words;
  for (int64_t start = 0; start < count; start += 4) {
    const uint64_t block = (row << kBlockBits) | static_cast<uint64_t>(start / 4);
    const auto four = philox4x32({static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
                                  static_cast<uint32_t>(stream), passage_},
                                 {key_[0], key_[1]});
    std::copy(four.begin(), four.end(), words.begin() + start);
  }
  normals_from(words.data(), count, out);
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
