#pragma once

#include <optional>
#include <string>
#include <vector>

#include "report/table.h"

namespace kvlab::report {

/// Which summary columns make a table's rows and columns, and what is shown.
struct Layout {
  std::vector<std::string> rows;
  std::vector<std::string> cols;       // none: one column a metric
  std::vector<std::string> metrics;    // one where there are `cols`
  std::string against;                 // keys of a column or row, joined; empty: none
  std::optional<std::string> sort_by;  // a metric, best first; else in the experiment's order
};

/// Published numbers beside measured ones: the layout of files whose experiment names some.
inline constexpr const char* kPublishedLayout = "published";

/// The names that `--name` takes.
std::vector<std::string> layout_names();

/// The layout that the options ask for. Throws Error where a name in them is unknown.
Layout make_layout(const store::Results& results, const TableOptions& options);

/// Metrics with a number in some complete cell: those of the catalogue in its order, then others.
std::vector<std::string> measured_metrics(const store::Results& results);

/// Those of them that a table shows where nothing is asked for: the usual ones, or the first few
/// where none of these was measured.
std::vector<std::string> default_metrics(const std::vector<std::string>& measured);

/// Columns that rows and columns of a table can be made of.
std::vector<std::string> dimensions(const store::Results& results);

}  // namespace kvlab::report
