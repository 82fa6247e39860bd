#pragma once

#include <c10/core/Device.h>

#include <optional>
#include <string>

namespace kvlab::model {

/// Why models cannot run on this device here, as a sentence; nothing where they can. The programs
/// link the CPU's half of libtorch alone: the first question about a GPU loads the other one, which
/// nothing may have asked libtorch for before.
std::optional<std::string> missing_device(at::Device device);

}  // namespace kvlab::model
