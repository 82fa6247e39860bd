#include "quant/kmeans.h"

#include <algorithm>
#include <vector>

namespace kvlab::quant {

namespace {

struct Weighed {
  float value, weight;
};

/// Ascending; all weights 1 where there are none, or none above 0.
std::vector<Weighed> sorted_values(const at::Tensor& x, const at::Tensor& weight) {
  const at::Tensor values = x.to(at::kFloat).contiguous();
  at::Tensor weights;
  if (weight.defined() && weight.gt(0).any().item<bool>()) {
    weights = weight.to(at::kFloat).contiguous();
  }
  const float* value = values.const_data_ptr<float>();
  const float* w = weights.defined() ? weights.const_data_ptr<float>() : nullptr;
  std::vector<Weighed> all(static_cast<size_t>(values.numel()));
  for (size_t i = 0; i < all.size(); ++i) all[i] = {value[i], w == nullptr ? 1.0F : w[i]};
  std::sort(all.begin(), all.end(),
            [](const Weighed& a, const Weighed& b) { return a.value < b.value; });
  return all;
}

/// The values at the middles of `levels` shares of equal weight.
std::vector<double> quantiles(const std::vector<Weighed>& sorted, int64_t levels) {
  double total = 0.0;
  for (const Weighed& one : sorted) total += one.weight;
  std::vector<double> found;
  double mass = 0.0;
  for (const Weighed& one : sorted) {
    mass += one.weight;
    while (static_cast<int64_t>(found.size()) < levels &&
           mass >=
               total * (static_cast<double>(found.size()) + 0.5) / static_cast<double>(levels)) {
      found.push_back(one.value);
    }
  }
  // Rounding may leave the last share open.
  found.resize(static_cast<size_t>(levels), sorted.back().value);
  return found;
}

/// The means of the values nearest to each centre; a centre without any stays.
std::vector<double> moved(const std::vector<Weighed>& sorted, const std::vector<double>& centres) {
  std::vector<double> next = centres;
  auto begin = sorted.begin();
  for (size_t i = 0; i < centres.size(); ++i) {
    auto end = sorted.end();
    if (i + 1 < centres.size()) {
      const double middle = (centres[i] + centres[i + 1]) / 2.0;
      end = std::partition_point(begin, end, [&](const Weighed& x) { return x.value < middle; });
    }
    double mass = 0.0, moment = 0.0;
    for (; begin != end; ++begin) {
      mass += begin->weight;
      moment += static_cast<double>(begin->weight) * begin->value;
    }
    if (mass > 0.0) next[i] = moment / mass;
  }
  return next;
}

}  // namespace

at::Tensor kmeans_scalars(const at::Tensor& x, const at::Tensor& weight, int64_t levels,
                          int64_t steps) {
  const std::vector<Weighed> sorted = sorted_values(x, weight);
  std::vector<double> centres = quantiles(sorted, levels);
  for (int64_t step = 0; step < steps; ++step) {
    std::vector<double> next = moved(sorted, centres);
    if (next == centres) break;
    centres = std::move(next);
  }
  return at::tensor(centres, at::kDouble);
}

at::Tensor nearest_rows(const at::Tensor& x, const at::Tensor& entries) {
  constexpr int64_t kSome = 4096;
  const at::Tensor half = entries.square().sum(-1).div_(2.0);
  std::vector<at::Tensor> found;
  for (int64_t first = 0; first < x.size(0); first += kSome) {
    // ‖x − e‖²/2 less ‖x‖²/2.
    const at::Tensor rows = x.narrow(0, first, std::min(kSome, x.size(0) - first));
    found.push_back((half - rows.matmul(entries.t())).argmin(-1));
  }
  return found.empty() ? at::empty({0}, at::kLong) : at::cat(found);
}

at::Tensor kmeans_rows(const at::Tensor& x, int64_t entries, int64_t steps,
                       const Progress& progress) {
  const int64_t sets = x.size(0), n = x.size(1), width = x.size(2);
  at::Tensor all = at::empty({sets, entries, width}, at::kFloat);
  const at::Tensor places = (at::arange(entries, at::kLong) * n).div(entries, "floor");
  for (int64_t set = 0; set < sets; ++set) {
    const at::Tensor rows = x[set].to(at::kFloat).contiguous();
    const at::Tensor order = rows.square().sum(-1).argsort(/*stable=*/true, 0);
    at::Tensor centres = rows.index_select(0, order.index_select(0, places));
    for (int64_t step = 0; step < steps; ++step) {
      const at::Tensor nearest = nearest_rows(rows, centres);
      const at::Tensor sums = at::zeros({entries, width}, at::kFloat).index_add(0, nearest, rows);
      const at::Tensor counts = at::bincount(nearest, {}, entries).to(at::kFloat).unsqueeze(1);
      centres = at::where(counts.gt(0), sums / counts.clamp_min(1.0), centres);
    }
    all[set].copy_(centres);
    if (progress) progress(set + 1, sets);
  }
  return all;
}

}  // namespace kvlab::quant
