#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "report/claims.h"
#include "store/results.h"

namespace kvlab::report {

/// A row of a results file as selectors see it.
struct Candidate {
  const store::SummaryRow* row = nullptr;
  const store::CellResult* cell = nullptr;       // complete and not stale; else nullptr
  std::map<std::string, nlohmann::json> recipe;  // flat: "key.rotate", "window.sink"
  std::vector<std::string> warnings;
};

/// The rows in the experiment's order, whatever their order in the file.
std::vector<Candidate> candidates(const store::Results& results);

/// A row of `of` and one of `over` on the same data.
struct Pair {
  const Candidate* of = nullptr;
  const Candidate* over = nullptr;
};

struct Pairing {
  std::vector<Pair> pairs;  // of complete cells, each pair of cells once
  /// Recipe keys and axes in which pairs differ besides what the claim names: whole methods only.
  std::set<std::string> differing;
  /// A sentence: which rows are missing, where there are no pairs. Empty where there are some.
  std::string missing;
};

/// Pairs rows that agree in dataset, layer, backend, seed (where both use it) and every sweep axis
/// that the claim does not name. Where neither selector has a label, every recipe key that both
/// hold and the claim does not name must agree too, and pools, evictions and stages that only one
/// has count as held by both: one factor at a time. A pair that differs only in named keys without
/// an effect by algebra compares nothing and is left out.
Pairing pair_rows(const store::Results& results, const std::vector<Candidate>& rows,
                  const Claim& claim);

}  // namespace kvlab::report
