#pragma once

#include <vector>

#include "checks.h"

namespace kvlab::gpu_check {

/// Cases of decoder.h against float64.
void add_decoder(std::vector<Case>& all);

}  // namespace kvlab::gpu_check
