#pragma once

#include <string>

#include "base/part.h"

namespace kvlab::data {

/// Raised whenever the bytes that some parameters and seed give change.
inline constexpr int kGeneratorVersion = 1;

/// Identity of a synthetic item: SHA-256 over the generator's version and every parameter that its
/// pattern uses, the defaults among them. The seed is not in it.
std::string synthetic_content(const Settings& params);

}  // namespace kvlab::data
