#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/yaml.h"

namespace kvlab::report {

/// Which rows of a results file a claim speaks of: those that have every value named.
struct Selector {
  std::string label;  // of the summary; empty: any. With it a whole method is meant
  /// Recipe keys as stored with the cell ("key.rotate"), else sweep axes, and their values.
  std::vector<std::pair<std::string, nlohmann::json>> settings;
};

/// On which side of 1 a claim puts the ratio of `of` to `over`; equal: within a share of 1.
enum class Claimed { higher, lower, equal };

/// A published sentence that a results file can check (claims.yaml).
struct Claim {
  std::string id;
  std::string sentence;
  std::string source;     // paper and place
  std::string published;  // the paper's figure; never compared with
  std::string metric;     // of the catalogue
  Claimed claimed = Claimed::lower;
  double within = 0;  // equal: 0.02 takes ratios from 1/1.02 to 1.02
  Selector of, over;
};

/// The claims of YAML text. Mistakes are added to `problems` with their places.
std::vector<Claim> read_claims(const std::string& yaml, const std::string& file,
                               yaml::Problems& problems);

/// Those of core/report/claims.yaml, embedded by the build. Throws ConfigError where they are
/// wrong.
const std::vector<Claim>& published_claims();

/// "above 1", "below 1", "within 2% of 1".
std::string claimed_text(const Claim& claim);

/// "label kivi", "key.rotate hadamard, value.rotate hadamard".
std::string selector_text(const Selector& selector);

}  // namespace kvlab::report
