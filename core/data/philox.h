#pragma once

#include <array>
#include <cstdint>

namespace kvlab::data {

/// One block of the counter-based generator Philox4x32-10: four words that are a pure function of
/// counter and key. Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC
/// 2011.
std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

}  // namespace kvlab::data
