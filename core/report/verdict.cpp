#include "report/verdict.h"

#include <fmt/format.h>

#include <cmath>
#include <map>
#include <optional>
#include <set>

#include "base/names.h"
#include "base/nan.h"
#include "report/bootstrap.h"
#include "report/grid.h"
#include "report/pairing.h"

namespace kvlab::report {
namespace {

constexpr double kLevel = 0.05;

std::optional<Sampled> log_ratio(const Pair& pair, const std::string& metric) {
  const Sampled of = sampled(*pair.of->cell, metric);
  const Sampled over = sampled(*pair.over->cell, metric);
  if (!std::isfinite(of.value) || !std::isfinite(over.value) || of.value <= 0 || over.value <= 0) {
    return std::nullopt;
  }
  return Sampled::of([](const std::vector<double>& both) { return std::log(both[0] / both[1]); },
                     {&of, &over});
}

/// Log ratios by the name of a part and by passage.
using Ratios = std::map<std::string, std::map<std::string, std::vector<Sampled>>>;

/// One number a passage.
std::vector<Sampled> passage_means(const std::map<std::string, std::vector<Sampled>>& passages) {
  std::vector<Sampled> means;
  for (const auto& [passage, ratios] : passages) means.push_back(mean_of(ratios));
  return means;
}

std::vector<Part> parts_of(const Ratios& ratios) {
  std::vector<Part> parts;
  for (const auto& [name, passages] : ratios) {
    const std::vector<Sampled> means = passage_means(passages);
    const auto interval = interval_of(means, /*whole_models=*/false);
    parts.push_back({.name = name,
                     .passages = static_cast<int64_t>(means.size()),
                     .effect = mean_of(means).value,
                     .low = interval ? interval->low : kNaN,
                     .high = interval ? interval->high : kNaN});
  }
  if (parts.size() < 2) parts.clear();
  return parts;
}

/// The mean log ratio of each passage; the finding's counts and parts.
std::vector<Sampled> compare(const Passages& passages, const Pairing& pairing, Finding* finding) {
  Ratios whole, by_text, by_rows;
  std::set<int64_t> layers;
  for (const Pair& pair : pairing.pairs) {
    const auto ratio = log_ratio(pair, finding->claim.metric);
    if (!ratio) {
      ++finding->left_out;
      continue;
    }
    ++finding->pairs;
    const store::SummaryRow& row = *pair.of->row;
    layers.insert(row.layer);
    const std::string& passage = passages.of(row);
    whole[""][passage].push_back(*ratio);
    by_text[row.text][passage].push_back(*ratio);
    by_rows[row.label + " over " + pair.over->row->label][passage].push_back(*ratio);
  }
  finding->layers = static_cast<int64_t>(layers.size());
  finding->passages = static_cast<int64_t>(whole[""].size());
  finding->by_text = parts_of(by_text);
  finding->by_rows = parts_of(by_rows);
  return passage_means(whole[""]);
}

/// All of a finding but what the other claims have a say in.
Finding measure(const store::Results& results, const Passages& passages,
                const std::vector<Candidate>& rows, const Claim& claim) {
  Finding finding{.claim = claim,
                  .verdict = "undecided",
                  .reason = {},
                  .effect = kNaN,
                  .low = kNaN,
                  .high = kNaN,
                  .p = kNaN,
                  .by_text = {},
                  .by_rows = {},
                  .differing = {}};
  const Pairing pairing = pair_rows(results, rows, claim);
  finding.differing.assign(pairing.differing.begin(), pairing.differing.end());
  if (pairing.pairs.empty()) {
    finding.reason = pairing.missing;
    return finding;
  }
  const std::vector<Sampled> all = compare(passages, pairing, &finding);
  if (all.empty()) {
    finding.reason = fmt::format("{} has no ratio in any of the {} pairs: zero or not measured",
                                 claim.metric, finding.left_out);
    return finding;
  }
  finding.effect = mean_of(all).value;
  if (finding.passages < kNeededPassages) {
    finding.reason = fmt::format("{} {}, a verdict needs {}", finding.passages,
                                 finding.passages == 1 ? "passage" : "passages", kNeededPassages);
    return finding;
  }
  const Interval interval = bootstrap(all, std::log1p(claim.within));
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
    finding->reason = fmt::format("not distinguishable once corrected for {} (p = {:.2g})",
                                  counted(static_cast<int64_t>(tested), "claim"), corrected);
  } else {
    finding->reason = finding->claim.claimed == Claimed::equal
                          ? "not distinguishable: the interval crosses the edge of the margin"
                          : "not distinguishable: the interval covers a ratio of 1";
  }
}

}  // namespace

bool is_flipped(const Part& part, const Finding& whole) {
  return whole.effect < 0 ? part.low > 0 : part.high < 0;
}

std::vector<Finding> judge(const store::Results& results, const std::vector<Claim>& claims) {
  const std::vector<Candidate> rows = candidates(results);
  const Passages passages(results);
  std::vector<Finding> findings;
  std::vector<size_t> tested;
  std::vector<double> p;
  for (const Claim& claim : claims) {
    findings.push_back(measure(results, passages, rows, claim));
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
