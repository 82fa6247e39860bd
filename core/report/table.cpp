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
  Notes notes = make_notes(results, grid);
  for (std::string& line : table_warnings(results, options.code_version)) {
    notes.lines.push_back(std::move(line));
  }
  return options.format == "markdown" ? render_markdown(grid, notes, options.emphasis)
                                      : render_text(grid, notes, options.emphasis);
}

std::vector<std::string> table_warnings(const store::Results& results,
                                        const std::string& code_version) {
  std::vector<std::string> lines = incomplete_cells(results);
  const auto own = results.attributes.find("code_version");
  if (own != results.attributes.end() && !code_version.empty() && own->second != code_version) {
    lines.push_back(fmt::format("stale: made by code version {}, this program is {}", own->second,
                                code_version));
  }
  return lines;
}

}  // namespace kvlab::report
