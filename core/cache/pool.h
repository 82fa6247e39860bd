#pragma once

#include <cstdint>
#include <vector>

namespace kvlab::cache {

/// A pool of at most `places` tokens with the lowest scores so far. Tokens come in groups: those of
/// [begin, begin + group), then the next ones; each group competes with the members, ties go to the
/// earlier token. For each token the number of groups after which it is no longer a member: 0 where
/// it never was one, INT64_MAX where it still is.
std::vector<int64_t> pool_membership(const std::vector<double>& scores, int64_t begin,
                                     int64_t group, int64_t groups, int64_t places);

}  // namespace kvlab::cache
