#include "config/plan_order.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include "base/names.h"

namespace kvlab::config {

void warn_of_shared_cells(Plan& plan) {
  std::map<size_t, std::set<std::pair<std::string, std::string>>> names;
  for (const Row& row : plan.rows) names[row.cell].emplace(row.label, row.dataset);
  for (Row& row : plan.rows) {
    std::vector<std::string> others;
    for (const auto& [label, dataset] : names[row.cell]) {
      if (label == row.label && dataset == row.dataset) continue;
      others.push_back(dataset == row.dataset ? label : label + " on " + dataset);
    }
    if (others.empty()) continue;
    row.warnings.push_back("same configuration as " + few(others) + ", computed once");
  }
}

void put_samples_together(Plan& plan, const std::vector<size_t>& dataset_of_cell) {
  std::vector<size_t> order(plan.cells.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto sample_of = [&](size_t i) {
    const Cell& cell = plan.cells[i];
    return std::tie(dataset_of_cell[i], cell.layer, cell.dataset.params, cell.seed);
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return sample_of(a) < sample_of(b); });
  std::vector<size_t> position(order.size());
  std::vector<Cell> cells;
  cells.reserve(order.size());
  for (size_t i = 0; i < order.size(); ++i) {
    position[order[i]] = i;
    cells.push_back(std::move(plan.cells[order[i]]));
  }
  plan.cells = std::move(cells);
  for (Row& row : plan.rows) row.cell = position[row.cell];
}

}  // namespace kvlab::config
