#include "report/table.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/names.h"
#include "report/grid.h"
#include "report/layout.h"
#include "report/notes.h"
#include "report/render.h"

namespace kvlab::report {

std::string table(const store::Results& results, const TableOptions& options) {
  const std::vector<std::string> formats = {"text", "markdown", "csv"};
  if (options.format == "latex") {
    throw Error("--format: latex comes in a later release; choose from " + join(formats));
  }
  if (std::find(formats.begin(), formats.end(), options.format) == formats.end()) {
    throw Error(fmt::format("--format: there is no format '{}'{}; choose from {}", options.format,
                            did_you_mean(options.format, formats), join(formats)));
  }
  const Layout layout = make_layout(results, options);
  if (results.rows.empty()) throw Error("the results file has no rows to make a table of");
  const Grid grid = make_grid(results, layout);
  if (options.format == "csv") return render_csv(grid);
  const Notes notes = make_notes(results, grid);
  return options.format == "markdown" ? render_markdown(grid, notes, options.emphasis)
                                      : render_text(grid, notes, options.emphasis);
}

std::vector<std::string> table_warnings(const store::Results& results) {
  return incomplete_cells(results);
}

}  // namespace kvlab::report
