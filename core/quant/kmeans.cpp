#include "quant/kmeans.h"

namespace kvlab::quant {

at::Tensor kmeans_scalars(const at::Tensor& x, const at::Tensor& weight, int64_t levels,
                          int64_t steps) {
  const auto [sorted, order] = x.to(at::kDouble).sort();
  const at::Tensor w =
      weight.defined() ? weight.to(at::kDouble).index_select(0, order) : at::ones_like(sorted);
  // Sums over ranges of sorted values are differences of running sums.
  const at::Tensor zero = at::zeros({1}, at::kDouble);
  const at::Tensor mass = at::cat({zero, w.cumsum(0)});
  const at::Tensor moment = at::cat({zero, (w * sorted).cumsum(0)});

  const double total = mass[-1].item<double>();
  const at::Tensor shares = (at::arange(levels, at::kDouble) + 0.5) / static_cast<double>(levels);
  const at::Tensor starts =
      at::searchsorted(mass, (shares * total).contiguous()).sub_(1).clamp_(0, x.size(0) - 1);
  at::Tensor centres = sorted.index_select(0, starts);
  for (int64_t step = 0; step < steps; ++step) {
    const at::Tensor middles =
        (centres.narrow(0, 0, levels - 1) + centres.narrow(0, 1, levels - 1)) / 2.0;
    const at::Tensor ends =
        at::cat({at::zeros({1}, at::kLong), at::searchsorted(sorted, middles.contiguous()),
                 at::full({1}, x.size(0), at::kLong)});
    const auto between = [&](const at::Tensor& running) {
      return running.index_select(0, ends).diff();
    };
    const at::Tensor held = between(mass);
    const at::Tensor next =
        at::where(held.gt(0), between(moment) / held.masked_fill(held.le(0), 1.0), centres);
    if (next.equal(centres)) break;
    centres = next;
  }
  return centres;
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
