#include "report/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "report/against.h"
#include "report/grid.h"
#include "report/grid_sheet.h"
#include "report/layout.h"
#include "report/notes.h"
#include "report/passages.h"
#include "report/published_sheet.h"
#include "report/render.h"

namespace kvlab::report {

namespace {

bool asks_for_a_layout(const TableOptions& options) {
  return !options.name.empty() || !options.rows.empty() || !options.cols.empty() ||
         !options.value.empty() || !options.against.empty();
}

Sheet make_sheet(const store::Results& results, const TableOptions& options) {
  const bool wants_published = options.name == kPublishedLayout;
  if (wants_published || !asks_for_a_layout(options)) {
    const auto published = published_of(results);
    if (published && !results.rows.empty()) return published_sheet(results, *published);
    if (wants_published) {
      throw Error("--name: the experiment of this file names no published numbers");
    }
  }
  const Layout layout = make_layout(results, options);
  if (results.rows.empty()) throw Error("the results file has no rows to make a table of");
  const Grid grid = make_grid(results, layout);
  check_against(grid);
  return sheet_of(grid, make_notes(results, grid));
}

}  // namespace

std::string table(const store::Results& results, const TableOptions& options) {
  check_format(options.format);
  Sheet sheet = make_sheet(results, options);
  for (std::string& line : table_warnings(results, options.code_version)) {
    sheet.notes.push_back(std::move(line));
  }
  return render(sheet, options.format, options.emphasis);
}

bool may_have_intervals(const store::Results& results) {
  const Passages passages(results);
  std::set<std::string> seen;
  return std::any_of(results.rows.begin(), results.rows.end(), [&](const store::SummaryRow& row) {
    seen.insert(passages.of(row));
    return row.layer < 0 || std::ssize(seen) >= kFewestPassages;
  });
}

std::vector<std::string> table_warnings(const store::Results& results,
                                        const std::string& code_version) {
  std::vector<std::string> lines = incomplete_cells(results);
  const std::string own = results.attribute("code_version");
  if (!own.empty() && !code_version.empty() && own != code_version) {
    lines.push_back(
        fmt::format("stale: made by code version {}, this program is {}", own, code_version));
  }
  return lines;
}

}  // namespace kvlab::report
