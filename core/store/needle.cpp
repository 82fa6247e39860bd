#include "store/needle.h"

#include <algorithm>
#include <regex>

namespace kvlab::store {

std::optional<NeedleName> needle_name(const std::string& name) {
  // A number follows where two datasets would share the name (" #2").
  static const std::regex form(R"((?:.* )?(\S+) (\d{1,9}) (\d{1,3})%( #\d+)?)");
  std::smatch found;
  if (!std::regex_match(name, found, form)) return std::nullopt;
  return NeedleName{.task = found[1].str(),
                    .length = std::stoll(found[2].str()),
                    .depth = std::stod(found[3].str()) / 100};
}

nlohmann::json needle_entry(const SummaryRow& row, std::string_view column) {
  const auto name = row.layer >= 0 ? std::nullopt : needle_name(row.dataset);
  if (!name) return nullptr;
  if (column == "task") return name->task;
  if (column == "length") return name->length;
  return name->depth;
}

bool has_needles(const Results& results) {
  return std::any_of(results.rows.begin(), results.rows.end(), [](const SummaryRow& row) {
    return !needle_entry(row, kNeedleColumns.front()).is_null();
  });
}

}  // namespace kvlab::store
