#pragma once

#include <ATen/ATen.h>

#include <functional>

namespace kvlab::quant {

/// Called while something is learned: steps done and in all. May throw to stop.
using Progress = std::function<void(int64_t done, int64_t all)>;

/// Lloyd's k-means of scalars, exact over sorted values: x and weight float32 [n], n at least 1
/// (weight undefined or all 0: 1 each), to `levels` centres, ascending float64. Starts at quantiles
/// of equal weight; a centre that loses all its values stays.
at::Tensor kmeans_scalars(const at::Tensor& x, const at::Tensor& weight, int64_t levels,
                          int64_t steps);

/// Lloyd's k-means of each of several sets of rows: x float32 [sets, n, w] to [sets, entries, w].
/// Starts at rows spread evenly over the order of their norms.
at::Tensor kmeans_rows(const at::Tensor& x, int64_t entries, int64_t steps,
                       const Progress& progress);

/// The index of the nearest entry (the first of equals): x [n, w], entries [k, w] to int64 [n].
/// Works on some rows at a time.
at::Tensor nearest_rows(const at::Tensor& x, const at::Tensor& entries);

}  // namespace kvlab::quant
