#pragma once

#include <array>
#include <string>
#include <vector>

#include "base/part.h"

/// Every key that a recipe may have, composed from the parts that are registered.
namespace kvlab::method {

/// The families that each side selects one part of, in the order of the arithmetic.
inline const std::array<std::string, 7> kFamilies = {"space",  "center",      "reorder", "basis",
                                                     "rotate", "token_scale", "codec"};

inline const std::array<std::string, 2> kSides = {"key", "value"};

/// What a recipe has beside its sides.
inline const std::array<std::string, 4> kSections = {"window", "protect", "evict", "calibrate"};

/// How a rotation from a file is written: `rotate: file:PATH`.
inline const std::string kFilePrefix = "file:";

/// Keys of a side ("rotate", "codec.bits"), the choices of the families among them. Where several
/// parts share a parameter it stands once.
const std::vector<Param>& side_params();

/// The keys of a section, without the prefix: those of "window", "protect" (tokens that stay in
/// full precision by what they are), "evict" (tokens that are dropped) and "calibrate" (a learned
/// part's own calibration).
const std::vector<Param>& section_params(const std::string& section);

/// The keys of a section that mean something beside its other settings (given without the prefix).
std::vector<std::string> used_in_section(const std::string& section, const Settings& settings);

/// The parameter behind a whole key ("key.codec.bits", "window.recent"), or nullptr.
const Param* find_param(const std::string& key);

/// The part that a side (all keys filled) selects in a family.
const Part& selected(const Settings& side, const std::string& family);

/// The parameter of that name as the selected parts declare it, or nullptr where none of them has
/// it.
const Param* declared(const Settings& side, const std::string& key);

/// The keys of a side that mean something beside its other settings.
std::vector<std::string> used_keys(const Settings& side);

/// The settings of a recipe in which nothing was chosen.
Settings default_settings();

}  // namespace kvlab::method
