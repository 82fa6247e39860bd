#pragma once

#include <map>
#include <string>

#include "store/results.h"

namespace kvlab::report {

/// What rows' numbers are samples of: the passages of texts. Synthetic data have one for each seed
/// that draws them. Datasets that hold the same content under several names, or stretches of
/// several lengths of it, are one passage, by the first of these names.
class Passages {
 public:
  explicit Passages(const store::Results& results);

  /// The passage of one of the results' own rows.
  const std::string& of(const store::SummaryRow& row) const;

 private:
  std::map<const store::SummaryRow*, std::string> names_;
};

}  // namespace kvlab::report
