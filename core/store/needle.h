#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "store/results.h"

namespace kvlab::store {

/// Columns of the summary where rows are of needle tasks.
inline constexpr std::array kNeedleColumns = {"task", "length", "depth"};

/// What a group of a kvlab.needles/1 file is called after: "TASK TOKENS DEPTH%".
struct NeedleName {
  std::string task;
  int64_t length = 0;  // tokens of a prompt
  double depth = 0;    // from 0 to 1
};

/// From the end of a name, of a group or of a dataset; nothing where it is not of that form.
std::optional<NeedleName> needle_name(const std::string& name);

/// A row's entry in one of the columns, from the name of its dataset. Null where that is of no
/// needle task.
nlohmann::json needle_entry(const SummaryRow& row, std::string_view column);

/// Whether any row has them.
bool has_needles(const Results& results);

}  // namespace kvlab::store
