#include "cache/pool.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace kvlab::cache {

std::vector<int64_t> pool_membership(const std::vector<double>& scores, int64_t begin,
                                     int64_t group, int64_t groups, int64_t places) {
  std::vector<int64_t> leaves(scores.size(), 0);
  std::vector<std::pair<double, int64_t>> members;  // score and token, sorted
  for (int64_t i = 0; i < groups; ++i) {
    for (int64_t token = begin + i * group; token < begin + (i + 1) * group; ++token) {
      members.emplace_back(scores[static_cast<size_t>(token)], token);
    }
    std::sort(members.begin(), members.end());
    const auto stay = std::min(static_cast<size_t>(places), members.size());
    for (size_t j = 0; j < stay; ++j) {
      leaves[static_cast<size_t>(members[j].second)] = std::numeric_limits<int64_t>::max();
    }
    for (size_t j = stay; j < members.size(); ++j) {
      // Of the group itself: never a member.
      const int64_t token = members[j].second;
      const bool is_new = token >= begin + i * group;
      leaves[static_cast<size_t>(token)] = is_new ? 0 : i + 1;
    }
    members.resize(stay);
  }
  return leaves;
}

}  // namespace kvlab::cache
