#include <algorithm>
#include <cmath>

#include "cpu/codes.h"
#include "cpu/row_ops.h"

namespace kvlab::kernels::cpu {
namespace {

void load(const void* const* rows, int count, int dim, Type type, const float* center, float* out) {
  for (int row = 0; row < count; ++row, out += dim) {
    for (int c = 0; c < dim; ++c) out[c] = load_number(rows[row], c, type);
    for (int c = 0; center != nullptr && c < dim; ++c) out[c] -= center[c];
  }
}

void hadamard(float* rows, int count, int dim) {
  const auto norm = static_cast<float>(1.0 / std::sqrt(static_cast<double>(dim)));
  for (int row = 0; row < count; ++row, rows += dim) {
    for (int half = 1; half < dim; half *= 2) {
      for (int base = 0; base < dim; base += 2 * half) {
        for (int i = base; i < base + half; ++i) {
          const float a = rows[i];
          const float b = rows[i + half];
          rows[i] = a + b;
          rows[i + half] = a - b;
        }
      }
    }
    for (int c = 0; c < dim; ++c) rows[c] *= norm;
  }
}

void product(float* rows, int count, int dim, const float* matrix, bool transposed,
             float* scratch) {
  for (int row = 0; row < count; ++row, rows += dim) {
    for (int c = 0; c < dim; ++c) scratch[c] = 0;
    if (transposed) {
      for (int c = 0; c < dim; ++c) {
        for (int i = 0; i < dim; ++i) scratch[c] += rows[i] * matrix[c * dim + i];
      }
    } else {
      for (int i = 0; i < dim; ++i) {
        for (int c = 0; c < dim; ++c) scratch[c] += rows[i] * matrix[i * dim + c];
      }
    }
    for (int c = 0; c < dim; ++c) rows[c] = scratch[c];
  }
}

void square_sums(const float* rows, int count, int dim, double* sums) {
  for (int row = 0; row < count; ++row, rows += dim) {
    double sum = 0;
    for (int c = 0; c < dim; ++c) sum += static_cast<double>(rows[c]) * rows[c];
    sums[row] = sum;
  }
}

void rescale(float* rows, int count, int dim, const float* by, bool divide) {
  for (int row = 0; row < count; ++row, rows += dim) {
    for (int c = 0; c < dim; ++c) rows[c] = divide ? rows[c] / by[row] : rows[c] * by[row];
  }
}

std::uint32_t select(std::uint32_t* numbers, int n, int index) {
  std::nth_element(numbers, numbers + index, numbers + n);
  return numbers[index];
}

/// Takes x into a range; NaN stays once it is there.
void widen(float x, float& lo, float& hi) {
  if (x < lo || x != x) lo = x;
  if (x > hi || x != x) hi = x;
}

void row_ranges(const float* rows, int count, int dim, int group, float* lo, float* hi) {
  for (int i = 0; i < count * (dim / group); ++i, rows += group) {
    lo[i] = hi[i] = rows[0];
    for (int c = 1; c < group; ++c) widen(rows[c], lo[i], hi[i]);
  }
}

void channel_ranges(const float* rows, int count, int dim, float* lo, float* hi) {
  for (int c = 0; c < dim; ++c) lo[c] = hi[c] = rows[c];
  for (int row = 1; row < count; ++row) {
    for (int c = 0; c < dim; ++c) widen(rows[row * dim + c], lo[c], hi[c]);
  }
}

GroupParams params_at(const ParamRows& params, int i) {
  return {params.scale[i], params.zero[i], params.flat[i] != 0};
}

void row_codes(const Grid& grid, const ParamRows& params, const float* rows, int count, int dim,
               int group, std::uint8_t* codes) {
  for (int i = 0; i < count * dim; ++i) {
    codes[i] = static_cast<std::uint8_t>(code_of(grid, params_at(params, i / group), rows[i]));
  }
}

void channel_codes(const Grid& grid, const ParamRows& params, const float* rows, int count, int dim,
                   std::uint8_t* codes) {
  for (int row = 0; row < count; ++row, rows += dim, codes += dim) {
    for (int c = 0; c < dim; ++c) {
      codes[c] = static_cast<std::uint8_t>(code_of(grid, params_at(params, c), rows[c]));
    }
  }
}

template <Side side>
void pack(const std::uint8_t* codes, int first, int count, int dim, int bits,
          std::uint8_t* packed) {
  const PackToken pack_one = pack_function<side>(dim, bits);
  for (int i = 0; i < count; ++i) pack_one(codes + i * dim, first + i, packed);
}

}  // namespace

const RowOps& portable_rows() {
  static constexpr RowOps ops = {&load,      &hadamard,      &product,         &square_sums,
                                 &rescale,   &select,        &row_ranges,      &channel_ranges,
                                 &row_codes, &channel_codes, &pack<Side::key>, &pack<Side::value>};
  return ops;
}

}  // namespace kvlab::kernels::cpu
