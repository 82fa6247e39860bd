#include "report/against.h"

#include <fmt/format.h>

#include <cmath>
#include <optional>

#include "base/error.h"
#include "base/names.h"
#include "base/nan.h"

namespace kvlab::report {
namespace {

std::string name_of(const Column& column) { return join(column.keys, " / "); }

/// The row or column that the others are held against. Where a table has columns of its own, the
/// name is first looked for among them.
struct Base {
  bool is_row = false;
  size_t index = 0;
};

std::optional<Base> find_base(const Grid& grid) {
  const std::string& wanted = grid.layout.against;
  for (size_t i = 0; i < grid.columns.size() && !grid.layout.cols.empty(); ++i) {
    if (name_of(grid.columns[i]) == wanted) return Base{.is_row = false, .index = i};
  }
  for (size_t i = 0; i < grid.lines.size(); ++i) {
    if (name_of(grid.lines[i]) == wanted) return Base{.is_row = true, .index = i};
  }
  return std::nullopt;
}

/// The value that one is compared with; nullptr where it is this one.
const Value* base_of(const Grid& grid, size_t line, size_t column) {
  const std::optional<Base> base = find_base(grid);
  if (!base || base->index == (base->is_row ? line : column)) return nullptr;
  return &grid.lines[base->is_row ? base->index : line].values[base->is_row ? column : base->index];
}

}  // namespace

Off off(const Grid& grid, size_t line, size_t column) {
  const Value* base = base_of(grid, line, column);
  const Value& value = grid.lines[line].values[column];
  Off result{.share = kNaN, .low = kNaN, .high = kNaN};
  if (base == nullptr || !std::isfinite(base->mean) || !std::isfinite(value.mean)) return result;
  result.share = value.mean == base->mean ? 0 : (value.mean - base->mean) / base->mean;
  const std::vector<Sampled> differences = paired_differences(value, *base);
  // Means over other passages than these would be compared with something else.
  const bool share_all =
      differences.size() == value.passages.size() && differences.size() == base->passages.size();
  const auto interval = share_all ? interval_of(differences, /*whole_models=*/false) : std::nullopt;
  if (interval) {
    result.low = interval->low / base->mean;
    result.high = interval->high / base->mean;
  }
  return result;
}

std::string off_text(const Off& off) {
  if (std::isnan(off.share)) return "";
  if (off.share == 0 && !(off.low < off.high)) return "equal";
  std::string share = fmt::format("{:+.1f}%", 100 * off.share);
  if (share.substr(1) == "0.0%") share.erase(0, 1);  // a rounded zero has no sign
  if (std::isnan(off.low)) return share;
  if (off.low <= 0 && off.high >= 0) return "not distinguishable";
  return fmt::format("{} ±{:.1f}%", share, 50 * (off.high - off.low));
}

void check_against(const Grid& grid) {
  if (grid.layout.against.empty() || find_base(grid)) return;
  const bool is_pivot = !grid.layout.cols.empty();
  std::vector<std::string> known;
  if (is_pivot) {
    for (const Column& column : grid.columns) known.push_back(name_of(column));
  }
  for (const Line& line : grid.lines) known.push_back(name_of(line));
  throw Error(fmt::format("--against: the table has no {} '{}'{}; choose from {}",
                          is_pivot ? "row or column" : "row", grid.layout.against,
                          did_you_mean(grid.layout.against, known), listed(known)));
}

}  // namespace kvlab::report
