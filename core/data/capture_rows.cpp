#include "data/capture_rows.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace kvlab::data {
namespace {

/// Bits of the exponent: all set in NaN and Inf, and in nothing else.
uint32_t exponent_mask(DType type) {
  switch (type) {
    case DType::fp32:
      return 0x7F800000;
    case DType::fp16:
      return 0x7C00;
    case DType::bf16:
      return 0x7F80;
  }
  return 0;
}

template <class Word>
void count_nonfinite(const void* row, int64_t dim, uint32_t mask,
                     const std::array<int64_t, 3>& place, Nonfinite* found) {
  const Word* words = static_cast<const Word*>(row);
  for (int64_t c = 0; c < dim; ++c) {
    if ((words[c] & mask) != mask) continue;
    if (found->count++ == 0) found->first = {place[0], place[1], place[2], c};
  }
}

void check_row(const void* row, int64_t dim, DType type, const std::array<int64_t, 3>& place,
               Nonfinite* found) {
  if (type == DType::fp32) {
    count_nonfinite<uint32_t>(row, dim, exponent_mask(type), place, found);
  } else {
    count_nonfinite<uint16_t>(row, dim, exponent_mask(type), place, found);
  }
}

}  // namespace

Nonfinite read_rows(const h5::File& file, const std::string& dataset, DType type,
                    const std::vector<int64_t>& rows, void* out, int64_t slice_bytes) {
  const std::vector<int64_t> shape = file.info(dataset).shape;
  const int64_t batch = shape[0], heads = shape[1], stored = shape[2], dim = shape[3];
  const int64_t row_bytes = dim * size_of(type);
  const int64_t step = std::clamp<int64_t>(slice_bytes / row_bytes, 1, stored);
  std::vector<char> slice(rows.empty() ? 0 : static_cast<size_t>(step * row_bytes));
  Nonfinite found;
  char* next = static_cast<char*>(out);
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t h = 0; h < heads; ++h) {
      auto wanted = rows.begin();
      for (int64_t start = 0; start < stored; start += step) {
        const int64_t count = std::min(step, stored - start);
        if (rows.empty()) {
          file.read_slice_raw(dataset, {b, h, start, 0}, {1, 1, count, dim}, next);
          for (int64_t i = 0; i < count; ++i, next += row_bytes) {
            check_row(next, dim, type, {b, h, start + i}, &found);
          }
          continue;
        }
        if (wanted == rows.end() || *wanted >= start + count) continue;
        file.read_slice_raw(dataset, {b, h, start, 0}, {1, 1, count, dim}, slice.data());
        for (; wanted != rows.end() && *wanted < start + count; ++wanted, next += row_bytes) {
          std::memcpy(next, slice.data() + (*wanted - start) * row_bytes,
                      static_cast<size_t>(row_bytes));
          check_row(next, dim, type, {b, h, *wanted}, &found);
        }
      }
    }
  }
  return found;
}

}  // namespace kvlab::data
