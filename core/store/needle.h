#pragma once

#include <array>
#include <nlohmann/json.hpp>

#include "store/results.h"

namespace kvlab::store {

/// Columns of the summary where rows are of needle tasks.
inline constexpr std::array kNeedleColumns = {"task", "length", "depth"};

/// A row's entry in one of these: the task's word, the prompt's tokens, the depth from 0 to 1. They
/// are read from the name of its dataset, which ends as the groups of a kvlab.needles/1 file do:
/// "… TASK TOKENS DEPTH%". Null where it does not.
nlohmann::json needle_entry(const SummaryRow& row, std::string_view column);

/// Whether any row has them.
bool has_needles(const Results& results);

}  // namespace kvlab::store
