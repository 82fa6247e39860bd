#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kvlab::data {

/// Which queries are measured (contract section 1).
struct ProbeChoice {
  std::string placement = "strided";  // strided | last | all
  int64_t count = 64;
};

/// Positions of the probes in a sequence of `tokens`, ascending and distinct. strided: ⌊T/2⌋ +
/// ⌊(i+1)(T − ⌊T/2⌋)/count⌋ − 1 for i = 0 … count−1; last: the last `count` ones, at most T; all: 0
/// … T−1. Throws Error for another placement or a count below 1.
std::vector<int64_t> probe_positions(int64_t tokens, const ProbeChoice& choice);

/// Indices into `held` (ascending) of the asked positions; nothing where one of them is not held.
std::vector<int64_t> indices_of(const std::vector<int64_t>& asked,
                                const std::vector<int64_t>& held);

}  // namespace kvlab::data
