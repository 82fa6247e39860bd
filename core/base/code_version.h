#pragma once

#include <string>

namespace kvlab {

/// First 16 hex digits of a SHA-256 over every source of core/ and kernels/ this program was built
/// from.
std::string code_version();

/// True where core/ or kernels/ had uncommitted changes when this program was built.
bool code_dirty();

}  // namespace kvlab
