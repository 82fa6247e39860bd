#include "report/pairing.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "report/grid.h"
#include "store/summary.h"

namespace kvlab::report {
namespace {

using nlohmann::json;

void flatten(const json& settings, const std::string& prefix, std::map<std::string, json>* flat) {
  for (const auto& [key, value] : settings.items()) {
    if (value.is_object()) {
      flatten(value, prefix + key + ".", flat);
    } else {
      (*flat)[prefix + key] = value;
    }
  }
}

/// Choices that a configuration leaves out while they are off. A row without one differs from a row
/// that has it; parameters (of a rotation, say) that one row alone holds follow from its choices.
const std::map<std::string, json> kLeftOut = {
    {"protect.kind", "none"}, {"evict.kind", "none"},    {"key.space", "post_rope"},
    {"key.reorder", "none"},  {"value.reorder", "none"}, {"key.basis", "none"},
    {"value.basis", "none"},
};

/// The recipe that a cell's configuration holds.
std::map<std::string, json> recipe_of(const json& config) {
  std::map<std::string, json> flat;
  const auto method = config.find("method");
  if (!config.is_object() || method == config.end() || !method->is_object()) return flat;
  for (const char* section : {"key", "value", "window", "protect", "evict"}) {
    const auto found = method->find(section);
    if (found != method->end() && found->is_object()) {
      flatten(*found, std::string(section) + ".", &flat);
    }
  }
  for (const auto& [key, off] : kLeftOut) flat.emplace(key, off);
  return flat;
}

class Matcher {
 public:
  Matcher(const store::Results& results, const Claim& claim) : results_(results) {
    one_factor_ = claim.of.label.empty() && claim.over.label.empty();
    for (const Selector* selector : {&claim.of, &claim.over}) {
      for (const auto& [key, value] : selector->settings) named_.insert(key);
    }
  }

  bool matches(const Selector& selector, const Candidate& candidate) const {
    if (!selector.label.empty() && candidate.row->label != selector.label) return false;
    return std::all_of(selector.settings.begin(), selector.settings.end(), [&](const auto& one) {
      return value_of(candidate, one.first) == one.second;
    });
  }

  /// What both rows of a pair have in common.
  std::string place_of(const Candidate& candidate) const {
    json place = {candidate.row->dataset, candidate.row->layer, candidate.row->backend};
    for (size_t i = 0; i < results_.axes.size(); ++i) {
      if (named_.contains(results_.axes[i]) || i >= candidate.row->sweep.size()) continue;
      place.push_back(candidate.row->sweep[i]);
    }
    return place.dump();
  }

  /// Whether the rows differ in nothing that they must share.
  bool agree(const Candidate& a, const Candidate& b) const {
    const bool both_drawn = a.row->seed_used && b.row->seed_used;
    if (both_drawn && a.row->seed != b.row->seed) return false;
    return !one_factor_ || differing(a, b).empty();
  }

  /// Recipe keys that both hold with unlike values and that the claim does not name.
  std::set<std::string> differing(const Candidate& a, const Candidate& b) const {
    std::set<std::string> keys;
    for (const auto& [key, value] : a.recipe) {
      const auto other = b.recipe.find(key);
      if (other != b.recipe.end() && other->second != value && !named_.contains(key)) {
        keys.insert(key);
      }
    }
    return keys;
  }

  /// All that the rows differ in of what the claim names has no effect there, as one of them says.
  bool is_idle(const Candidate& a, const Candidate& b) const {
    bool differs = false;
    for (const std::string& key : named_) {
      if (value_of(a, key) == value_of(b, key)) continue;
      if (!has_no_effect(a, key) && !has_no_effect(b, key)) return false;
      differs = true;
    }
    return differs;
  }

 private:
  static bool has_no_effect(const Candidate& candidate, const std::string& key) {
    return std::any_of(candidate.warnings.begin(), candidate.warnings.end(),
                       [&](const std::string& warning) {
                         return warning.starts_with(key + ": no effect by algebra");
                       });
  }

  json value_of(const Candidate& candidate, const std::string& key) const {
    const auto found = candidate.recipe.find(key);
    return found != candidate.recipe.end() ? found->second
                                           : entry_of(results_, *candidate.row, key);
  }

  const store::Results& results_;
  bool one_factor_ = false;
  std::set<std::string> named_;
};

/// Rows of one side, by what a pair shares.
struct Side {
  std::map<std::string, std::vector<const Candidate*>> places;
  int64_t rows = 0;
  int64_t complete = 0;
};

Side select(const Matcher& matcher, const Selector& selector, const std::vector<Candidate>& rows) {
  Side side;
  for (const Candidate& candidate : rows) {
    if (!matcher.matches(selector, candidate)) continue;
    ++side.rows;
    if (candidate.cell == nullptr) continue;
    ++side.complete;
    side.places[matcher.place_of(candidate)].push_back(&candidate);
  }
  return side;
}

/// What a side lacks; nothing where it has complete rows.
std::optional<std::string> lacks(const Side& side, const Selector& selector) {
  if (side.rows == 0) return fmt::format("no row has {}", selector_text(selector));
  if (side.complete == 0) {
    return fmt::format("none of the {} rows with {} is complete", side.rows,
                       selector_text(selector));
  }
  return std::nullopt;
}

std::string missing_rows(const Side& of, const Side& over, const Claim& claim, bool was_idle) {
  const auto first = lacks(of, claim.of);
  const auto second = lacks(over, claim.over);
  if (first && second) return *first + "; " + *second;
  if (first || second) return first ? *first : *second;
  if (was_idle) return "what it compares has no effect by algebra in any pair of rows";
  return fmt::format("no two rows, one with {} and one with {}, agree in everything else",
                     selector_text(claim.of), selector_text(claim.over));
}

}  // namespace

std::vector<Candidate> candidates(const store::Results& results) {
  std::vector<Candidate> all;
  all.reserve(results.rows.size());
  for (const store::SummaryRow& row : results.rows) {
    all.push_back({.row = &row,
                   .cell = complete_cell(results, row),
                   .recipe = recipe_of(config_of(results, row)),
                   .warnings = store::warnings_of(results, row)});
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const Candidate& a, const Candidate& b) { return a.row->row < b.row->row; });
  return all;
}

Pairing pair_rows(const store::Results& results, const std::vector<Candidate>& rows,
                  const Claim& claim) {
  const Matcher matcher(results, claim);
  const Side of = select(matcher, claim.of, rows);
  const Side over = select(matcher, claim.over, rows);
  Pairing pairing;
  // Two names of one configuration share a cell and must not count twice.
  std::set<std::pair<std::string, std::string>> known;
  bool was_idle = false;
  for (const auto& [place, firsts] : of.places) {
    const auto found = over.places.find(place);
    if (found == over.places.end()) continue;
    for (const Candidate* first : firsts) {
      for (const Candidate* second : found->second) {
        if (!matcher.agree(*first, *second)) continue;
        if (matcher.is_idle(*first, *second)) {
          was_idle = true;
          continue;
        }
        if (!known.emplace(first->row->cell, second->row->cell).second) continue;
        pairing.pairs.push_back({first, second});
        pairing.differing.merge(matcher.differing(*first, *second));
      }
    }
  }
  if (pairing.pairs.empty()) pairing.missing = missing_rows(of, over, claim, was_idle);
  return pairing;
}

}  // namespace kvlab::report
