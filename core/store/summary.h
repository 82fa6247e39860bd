#pragma once

#include <string>
#include <vector>

#include "base/h5.h"
#include "store/results.h"

namespace kvlab::store {

/// The cell of a row; nullptr where the file has none.
const CellResult* cell_of(const Results& results, const SummaryRow& row);

/// State of a row's cell; "interrupted" with a reason where there is none.
struct State {
  std::string status;
  std::string reason;
};
State state_of(const Results& results, const SummaryRow& row);

/// Rows of the experiment that the file does not have, since its run was a shard or chose methods;
/// 0 also where an earlier release did not store how many there are.
int64_t missing_rows(const Results& results);

/// The sentence that says so; empty where none is missing.
std::string missing_rows_text(const Results& results);

/// Warnings of the row and of its cell, each once.
std::vector<std::string> warnings_of(const Results& results, const SummaryRow& row);

/// The row's value of a metric: NaN where it was not measured or the cell is not complete.
double scalar_of(const Results& results, const SummaryRow& row, const std::string& metric);

/// A sweep value as the YAML text it was, for tables and for columns that are not all numbers.
std::string axis_text(const nlohmann::json& value);

/// Names of columns that are neither sweep axes nor metrics, in the order of contract section 6.
const std::vector<std::string>& fixed_columns();

/// Writes /summary, one dataset a column, and seals it. Throws Error where an axis has a reserved
/// name.
void write_summary(h5::File& file, const Results& results);

/// Reads axes and rows of /summary into `results`, whose cells are those of the same file: a row's
/// own warnings are told from them. Throws Error where a column is missing or has another length.
void read_summary(const h5::File& file, Results* results);

}  // namespace kvlab::store
