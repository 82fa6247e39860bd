#include "report/verdict.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <set>

#include "report/bootstrap.h"
#include "report/pairing.h"

namespace kvlab::report {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kLevel = 0.05;

std::optional<double> log_ratio(const Pair& pair, const std::string& metric) {
  const auto value = [&](const Candidate& candidate) {
    const auto found = candidate.cell->scalars.find(metric);
    return found == candidate.cell->scalars.end() ? kNaN : found->second;
  };
  const double of = value(*pair.of);
  const double over = value(*pair.over);
  if (!std::isfinite(of) || !std::isfinite(over) || of <= 0 || over <= 0) return std::nullopt;
  return std::log(of / over);
}

double mean_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

/// The mean log ratio of each passage, in the order of their names.
std::vector<double> passage_means(const Pairing& pairing, const std::string& metric,
                                  Finding* finding) {
  std::map<std::string, std::vector<double>> by_passage;
  std::set<int64_t> layers;
  for (const Pair& pair : pairing.pairs) {
    const auto ratio = log_ratio(pair, metric);
    if (!ratio) {
      ++finding->left_out;
      continue;
    }
    ++finding->pairs;
    layers.insert(pair.of->row->layer);
    by_passage[pair.of->row->dataset].push_back(*ratio);
  }
  finding->layers = static_cast<int64_t>(layers.size());
  finding->passages = static_cast<int64_t>(by_passage.size());
  std::vector<double> means;
  means.reserve(by_passage.size());
  for (const auto& [passage, ratios] : by_passage) means.push_back(mean_of(ratios));
  return means;
}

/// All of a finding but what the other claims have a say in.
Finding measure(const store::Results& results, const std::vector<Candidate>& rows,
                const Claim& claim) {
  Finding finding{.claim = claim,
                  .verdict = "undecided",
                  .reason = {},
                  .effect = kNaN,
                  .low = kNaN,
                  .high = kNaN,
                  .p = kNaN,
                  .differing = {}};
  const Pairing pairing = pair_rows(results, rows, claim);
  finding.differing.assign(pairing.differing.begin(), pairing.differing.end());
  if (pairing.pairs.empty()) {
    finding.reason = pairing.missing;
    return finding;
  }
  const std::vector<double> means = passage_means(pairing, claim.metric, &finding);
  if (means.empty()) {
    finding.reason = fmt::format("{} has no ratio in any of the {} pairs: zero or not measured",
                                 claim.metric, finding.left_out);
    return finding;
  }
  finding.effect = mean_of(means);
  if (finding.passages < kNeededPassages) {
    finding.reason = fmt::format("{} {}, a verdict needs {}", finding.passages,
                                 finding.passages == 1 ? "passage" : "passages", kNeededPassages);
    return finding;
  }
  const Interval interval = bootstrap(means, std::log1p(claim.within));
  finding.low = interval.low;
  finding.high = interval.high;
  finding.p = interval.p;
  return finding;
}

bool is_as_claimed(const Finding& finding) {
  switch (finding.claim.claimed) {
    case Claimed::higher:
      return finding.effect > 0;
    case Claimed::lower:
      return finding.effect < 0;
    default:
      return std::abs(finding.effect) < std::log1p(finding.claim.within);
  }
}

void decide(Finding* finding, double corrected, size_t tested) {
  const bool is_distinct = finding->p < kLevel;
  finding->p = corrected;
  if (corrected < kLevel) {
    finding->verdict = is_as_claimed(*finding) ? "upheld" : "reversed";
  } else if (is_distinct) {
    finding->reason = fmt::format("not distinguishable once corrected for {} claims (p = {:.2g})",
                                  tested, corrected);
  } else {
    finding->reason = finding->claim.claimed == Claimed::equal
                          ? "not distinguishable: the interval crosses the edge of the margin"
                          : "not distinguishable: the interval covers a ratio of 1";
  }
}

}  // namespace

std::vector<Finding> judge(const store::Results& results, const std::vector<Claim>& claims) {
  const std::vector<Candidate> rows = candidates(results);
  std::vector<Finding> findings;
  std::vector<size_t> tested;
  std::vector<double> p;
  for (const Claim& claim : claims) {
    findings.push_back(measure(results, rows, claim));
    if (std::isnan(findings.back().p)) continue;
    tested.push_back(findings.size() - 1);
    p.push_back(findings.back().p);
  }
  const std::vector<double> corrected = holm(p);
  for (size_t i = 0; i < tested.size(); ++i) {
    decide(&findings[tested[i]], corrected[i], tested.size());
  }
  return findings;
}

}  // namespace kvlab::report
