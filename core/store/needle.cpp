#include "store/needle.h"

#include <algorithm>
#include <regex>

namespace kvlab::store {

nlohmann::json needle_entry(const SummaryRow& row, std::string_view column) {
  // A number follows where two datasets would share the name (" #2").
  static const std::regex form(R"(.* (\S+) (\d{1,9}) (\d{1,3})%( #\d+)?)");
  std::smatch found;
  if (row.layer >= 0 || !std::regex_match(row.dataset, found, form)) return nullptr;
  if (column == "task") return found[1].str();
  if (column == "length") return std::stoll(found[2].str());
  return std::stod(found[3].str()) / 100;
}

bool has_needles(const Results& results) {
  return std::any_of(results.rows.begin(), results.rows.end(), [](const SummaryRow& row) {
    return !needle_entry(row, kNeedleColumns.front()).is_null();
  });
}

}  // namespace kvlab::store
