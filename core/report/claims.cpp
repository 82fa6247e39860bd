#include "report/claims.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/names.h"
#include "metrics_catalog/catalog.h"
#include "report/claims_text.h"
#include "store/summary.h"

namespace kvlab::report {
namespace {

using yaml::Node;

/// The keys of one claim, each of them needed.
class ClaimReader {
 public:
  ClaimReader(const Node& node, yaml::Problems& problems)
      : node_(node), fields_(node, "a claim", problems), problems_(problems) {}

  Claim read() {
    Claim claim;
    claim.id = text("id");
    claim.sentence = text("sentence");
    claim.source = text("source");
    claim.published = text("published");
    claim.metric = text("metric");
    if (!claim.metric.empty() && metrics::find_metric(claim.metric) == nullptr) {
      yaml::report(problems_, *node_.find("metric"),
                   fmt::format("there is no metric '{}'", claim.metric));
    }
    read_direction(&claim);
    claim.of = selector("of");
    claim.over = selector("over");
    fields_.finish();
    return claim;
  }

 private:
  void read_direction(Claim* claim) {
    const std::string word = text("claimed");
    if (word == "higher") claim->claimed = Claimed::higher;
    if (word == "equal") claim->claimed = Claimed::equal;
    if (!word.empty() && word != "higher" && word != "lower" && word != "equal") {
      yaml::report(problems_, *node_.find("claimed"),
                   fmt::format("'claimed' must be higher, lower or equal, found '{}'", word));
      return;
    }
    const Node* within = fields_.get("within");
    if ((within != nullptr) != (claim->claimed == Claimed::equal)) {
      yaml::report(problems_, within != nullptr ? *within : node_,
                   "'within' goes with 'claimed: equal', and with nothing else");
      return;
    }
    if (within == nullptr) return;
    claim->within = yaml::read_real(*within, "within", problems_).value_or(0);
    if (claim->within <= 0) {
      yaml::report(problems_, *within, "'within' must be above 0: a share of the ratio");
    }
  }

  const Node* needed(const char* key) {
    const Node* value = fields_.get(key);
    if (value == nullptr) yaml::report(problems_, node_, fmt::format("a claim needs '{}'", key));
    return value;
  }

  std::string text(const char* key) {
    const Node* value = needed(key);
    return value == nullptr ? "" : yaml::read_text(*value, key, problems_).value_or("");
  }

  Selector selector(const char* key) {
    Selector result;
    const Node* value = needed(key);
    if (value == nullptr) return result;
    if (!value->is_map() || value->members.empty()) {
      yaml::report(problems_, *value,
                   fmt::format("'{}' must be a map of a label, recipe keys or sweep axes, found {}",
                               key, yaml::describe(*value)));
    }
    for (const yaml::Member& member : value->members) {
      if (member.key == "label") {
        result.label = yaml::read_text(member.value, "label", problems_).value_or("");
      } else {
        result.settings.emplace_back(member.key, yaml::to_json(member.value));
      }
    }
    return result;
  }

  const Node& node_;
  yaml::Fields fields_;
  yaml::Problems& problems_;
};

}  // namespace

std::vector<Claim> read_claims(const std::string& yaml, const std::string& file,
                               yaml::Problems& problems) {
  const Node root = yaml::parse(yaml, file, problems);
  yaml::Fields fields(root, "the list of claims", problems);
  std::vector<Claim> claims;
  const Node* list = fields.get("claims");
  if (list == nullptr || !list->is_list()) {
    yaml::report(problems, root, "'claims' must be a list of claims");
    return claims;
  }
  for (const Node& node : list->items) {
    Claim claim = ClaimReader(node, problems).read();
    const bool known = std::any_of(claims.begin(), claims.end(),
                                   [&](const Claim& other) { return other.id == claim.id; });
    if (known) yaml::report(problems, node, fmt::format("claim '{}' is listed twice", claim.id));
    claims.push_back(std::move(claim));
  }
  fields.finish();
  return claims;
}

const std::vector<Claim>& published_claims() {
  static const std::vector<Claim> claims = [] {
    yaml::Problems problems;
    std::vector<Claim> read = read_claims(claims_text(), "claims.yaml", problems);
    if (!problems.empty()) throw ConfigError(problems);
    return read;
  }();
  return claims;
}

std::string claimed_text(const Claim& claim) {
  switch (claim.claimed) {
    case Claimed::higher:
      return "above 1";
    case Claimed::lower:
      return "below 1";
    default:
      return fmt::format("within {:g}% of 1", 100 * claim.within);
  }
}

std::string selector_text(const Selector& selector) {
  std::vector<std::string> words;
  if (!selector.label.empty()) words.push_back("label " + selector.label);
  for (const auto& [key, value] : selector.settings) {
    words.push_back(key + " " + store::axis_text(value));
  }
  return join(words);
}

}  // namespace kvlab::report
