#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "store/store.h"

namespace kvlab::report {

/// Where an experiment stands: cells by state, reasons, stale cells, who is writing the file.
std::string status_text(const store::Status& status, const std::string& file);
nlohmann::ordered_json status_json(const store::Status& status, const std::string& file);

}  // namespace kvlab::report
