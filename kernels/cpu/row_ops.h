#pragma once

#include <cstdint>

#include "kvlab/kernels/cache.h"

/// The stages between captured rows and packed codes, on a buffer of `count` rows of `dim` float32
/// numbers. Every instruction set has its own version of each. All give the same bits (square sums
/// but for their last ones): terms are added in the order of the portable code, without fused
/// multiply-add, so that codes do not depend on the processor.
namespace kvlab::kernels::cpu {

/// Scale and zero of a stretch of elements, as arrays: of a row's groups, or of the channels.
struct ParamRows {
  const float* scale;
  const float* zero;
  const float* flat;  // 1 or 0
};

struct RowOps {
  /// Captured rows (16-bit or float32) as float32, less `center` [dim] where there is one.
  void (*load)(const void* const* rows, int count, int dim, Type type, const float* center,
               float* out);

  /// Rows times the normalized Hadamard matrix.
  void (*hadamard)(float* rows, int count, int dim);

  /// Rows times `matrix` [dim, dim], or its transpose. `scratch` holds one row.
  void (*product)(float* rows, int count, int dim, const float* matrix, bool transposed,
                  float* scratch);

  /// Sums of squares of rows.
  void (*square_sums)(const float* rows, int count, int dim, double* sums);

  /// Rows divided (or multiplied) by one number each.
  void (*rescale)(float* rows, int count, int dim, const float* by, bool divide);

  /// The number at `index` in ascending order of n (32 to 256, a multiple of 8) numbers below 2^31,
  /// which are left in any order.
  std::uint32_t (*select)(std::uint32_t* numbers, int n, int index);

  /// Least and largest of each `group` numbers of a row, [count, dim / group]; NaN where one is
  /// among them.
  void (*row_ranges)(const float* rows, int count, int dim, int group, float* lo, float* hi);

  /// Least and largest of each channel over all rows, [dim].
  void (*channel_ranges)(const float* rows, int count, int dim, float* lo, float* hi);

  /// Codes, one a byte [count, dim]; parameters [count, dim / group] of each row's groups.
  void (*row_codes)(const Grid& grid, const ParamRows& params, const float* rows, int count,
                    int dim, int group, std::uint8_t* codes);

  /// Codes; parameters [dim] of channels, the same for all rows.
  void (*channel_codes)(const Grid& grid, const ParamRows& params, const float* rows, int count,
                        int dim, std::uint8_t* codes);

  /// Packs codes of tokens first … first + count − 1 of a block into its code section, leaving
  /// others as they are.
  void (*pack_keys)(const std::uint8_t* codes, int first, int count, int dim, int bits,
                    std::uint8_t* packed);
  void (*pack_values)(const std::uint8_t* codes, int first, int count, int dim, int bits,
                      std::uint8_t* packed);
};

const RowOps& portable_rows();
const RowOps* avx2_rows();  // null where they are not compiled
const RowOps& row_ops();    // those of chosen_isa()

}  // namespace kvlab::kernels::cpu
