#include "data/probes.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/names.h"

namespace kvlab::data {

std::vector<int64_t> probe_positions(int64_t tokens, const ProbeChoice& choice) {
  const bool all = choice.placement == "all";
  if (!all && choice.count < 1) {
    throw Error(fmt::format("probes: count must be at least 1, found {}", choice.count));
  }
  if (all || choice.placement == "last") {
    const int64_t count = all ? tokens : std::min(choice.count, tokens);
    std::vector<int64_t> positions(static_cast<size_t>(count));
    std::iota(positions.begin(), positions.end(), tokens - count);
    return positions;
  }
  if (choice.placement != "strided") {
    throw Error(fmt::format("probes: placement '{}' is not one of strided, last, all{}",
                            choice.placement,
                            did_you_mean(choice.placement, {"strided", "last", "all"})));
  }
  const int64_t half = tokens / 2;
  std::vector<int64_t> positions;
  for (int64_t i = 0; i < choice.count; ++i) {
    // With more probes than tokens in the half, the first ones fall one before it; position −1 does
    // not exist.
    const int64_t position = half + (i + 1) * (tokens - half) / choice.count - 1;
    if (position >= 0 && (positions.empty() || position != positions.back())) {
      positions.push_back(position);
    }
  }
  return positions;
}

std::vector<int64_t> indices_of(const std::vector<int64_t>& asked,
                                const std::vector<int64_t>& held) {
  std::vector<int64_t> indices;
  for (const int64_t position : asked) {
    const auto found = std::lower_bound(held.begin(), held.end(), position);
    if (found == held.end() || *found != position) return {};
    indices.push_back(found - held.begin());
  }
  return indices;
}

}  // namespace kvlab::data
