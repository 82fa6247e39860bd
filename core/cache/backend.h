#pragma once

#include <optional>
#include <string>

namespace kvlab::cache {

/// Why the backend cannot be had on this machine, as a sentence; nothing where it can.
std::optional<std::string> missing_backend(const std::string& backend);

/// What the backend `cpu` runs here: "AVX2" or "portable"; "no" where it is missing.
std::string cpu_code();

/// The GPU's name, or "none".
std::string gpu_name();

}  // namespace kvlab::cache
