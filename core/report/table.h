#pragma once

#include <string>
#include <vector>

#include "store/results.h"

namespace kvlab::report {

/// What `kvlab table` may be asked for. Empty means: as the named layout says.
struct TableOptions {
  std::string name = {};          // one of layout_names()
  std::string rows = {};          // columns of the summary, separated by commas
  std::string cols = {};          // the same
  std::string against = {};       // a column, or a row, that the others are compared with
  std::string value = {};         // metrics, separated by commas; one where there are `cols`
  std::string format = "text";    // one of format_names()
  bool emphasis = false;          // best value of a column bold, the second underlined
  std::string code_version = {};  // of this program; a file of another version is called stale
};

/// A table of means over whatever is not among its rows and columns; where the experiment names
/// published numbers and no other layout is asked for, published beside measured. What a reader
/// must know stands in notes, which CSV does not have. Throws Error
/// where a name is unknown (with the nearest valid one), a metric was not measured, or there are no
/// rows.
std::string table(const store::Results& results, const TableOptions& options);

/// Whether a mean of the file's can have an interval: enough passages, or whole models.
bool may_have_intervals(const store::Results& results);

/// What a reader of a table without notes must know, a sentence each: cells that are not complete
/// or stale. `code_version` is that of this program.
std::vector<std::string> table_warnings(const store::Results& results,
                                        const std::string& code_version);

}  // namespace kvlab::report
