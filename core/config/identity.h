#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "config/calibration_check.h"
#include "config/plan.h"

/// What a cell is: the JSON that its id is a hash of, and the JSON that is stored with it.
namespace kvlab::config {

/// Everything that a cell's result depends on, and nothing else: no name, no label, no path.
/// cell.recipe, .dataset, .layer, .probes, .measure, .backend and .calibration must be set.
/// `rotations` has the SHA-256 of the file behind each side's `rotate: file:PATH`.
struct CellInputs {
  const DatasetInfo& info;
  const DatasetInfo* calibration = nullptr;  // where the recipe needs one
  nlohmann::json method;                     // canonical form of the recipe
  Settings requested = {};                   // what the recipe asks for and does not get
  nlohmann::json rotations = nlohmann::json::object();
  bool seed_used = false;
};

nlohmann::json identity_of(const Cell& cell, const CellInputs& inputs);

/// First 32 hex digits of the SHA-256 of the identity's text.
std::string id_of(const nlohmann::json& identity);

/// The JSON of contract section 6, but for the calibration's overlap, which the plan knows.
nlohmann::json config_of(const Cell& cell, const CellInputs& inputs, const MethodUse& use,
                         const nlohmann::json& sweep);

}  // namespace kvlab::config
