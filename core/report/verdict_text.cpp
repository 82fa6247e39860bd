#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/names.h"
#include "report/grid.h"
#include "report/number_text.h"
#include "report/text_width.h"
#include "report/verdict.h"

namespace kvlab::report {
namespace {

using nlohmann::ordered_json;
using Words = std::vector<std::string>;

/// A logarithm as the ratio that a reader thinks in; a dash for NaN.
std::string ratio_text(double effect) { return short_number(std::exp(effect)); }

ordered_json number(double value) {
  return std::isnan(value) ? ordered_json() : ordered_json(value);
}

/// Of a finding, or of its part of one text.
template <class Found>
std::string interval_text(const Found& found) {
  if (std::isnan(found.low)) return "-";
  return fmt::format("{} to {}", ratio_text(found.low), ratio_text(found.high));
}

ordered_json parts_json(const std::vector<Part>& parts, const Finding& whole) {
  ordered_json list = ordered_json::array();
  for (const Part& part : parts) {
    list.push_back({{"name", part.name},
                    {"passages", part.passages},
                    {"effect", number(part.effect)},
                    {"interval", {number(part.low), number(part.high)}},
                    {"ratio", number(std::exp(part.effect))},
                    {"flipped", is_flipped(part, whole)}});
  }
  return list;
}

std::string parts_text(const std::vector<Part>& parts, const Finding& whole) {
  std::string text;
  for (const Part& part : parts) {
    text += fmt::format("  {}: {} ({}), {} {}{}\n", part.name.empty() ? "no text" : part.name,
                        ratio_text(part.effect), interval_text(part), part.passages,
                        part.passages == 1 ? "passage" : "passages",
                        is_flipped(part, whole) ? ", the other way round" : "");
  }
  return text;
}

const char* claimed_word(Claimed claimed) {
  switch (claimed) {
    case Claimed::higher:
      return "higher";
    case Claimed::lower:
      return "lower";
    default:
      return "equal";
  }
}

std::string comparison_text(const Finding& finding) {
  return fmt::format("{} of ({}) over ({}), claimed {}", finding.claim.metric,
                     selector_text(finding.claim.of), selector_text(finding.claim.over),
                     claimed_text(finding.claim));
}

std::string aligned(const std::vector<Words>& lines, size_t text_columns) {
  std::vector<size_t> widths(lines.front().size(), 0);
  for (const Words& line : lines) {
    for (size_t i = 0; i < line.size(); ++i) {
      widths[i] = std::max(widths[i], display_width(line[i]));
    }
  }
  std::string text;
  for (const Words& line : lines) {
    Words cells;
    for (size_t i = 0; i < line.size(); ++i) {
      cells.push_back(padded(line[i], widths[i], i < text_columns ? Align::left : Align::right));
    }
    text += join(cells, "  ") + "\n";
  }
  return text;
}

std::string details(const Finding& finding) {
  std::string text =
      fmt::format("\n{}: {}\n  {}: {}\n  {}\n", finding.claim.id, finding.claim.sentence,
                  finding.claim.source, finding.claim.published, comparison_text(finding));
  if (!finding.reason.empty()) text += fmt::format("  undecided: {}\n", finding.reason);
  text += parts_text(finding.by_text, finding);
  if (!finding.by_rows.empty()) {
    text += fmt::format("  pooled over {} pairs of labels, each by itself:\n{}",
                        finding.by_rows.size(), parts_text(finding.by_rows, finding));
  }
  if (!finding.differing.empty()) {
    text += fmt::format("  the rows differ in more: {}\n", join(finding.differing));
  }
  if (finding.left_out > 0 && finding.pairs > 0) {
    text += fmt::format("  {} pairs left out: {} is zero, infinite or not measured\n",
                        finding.left_out, finding.claim.metric);
  }
  return text;
}

}  // namespace

std::string findings_text(const std::vector<Finding>& findings) {
  std::vector<Words> lines = {
      {"claim", "verdict", "ratio", "95% interval", "passages", "layers", "pairs"}};
  for (const Finding& finding : findings) {
    lines.push_back({finding.claim.id, finding.verdict, ratio_text(finding.effect),
                     interval_text(finding), fmt::format("{}", finding.passages),
                     fmt::format("{}", finding.layers), fmt::format("{}", finding.pairs)});
  }
  std::string text = aligned(lines, 2);
  text += fmt::format(
      "\nratio: geometric mean over pairs of rows, then passages; intervals resample passages and, "
      "where\nthe metric is known by position, blocks of 128 positions within them;\nverdicts need "
      "{} passages and hold after Holm's correction\n",
      kNeededPassages);
  for (const Finding& finding : findings) text += details(finding);
  return text;
}

ordered_json findings_json(const std::vector<Finding>& findings) {
  ordered_json list = ordered_json::array();
  for (const Finding& finding : findings) {
    const Claim& claim = finding.claim;
    list.push_back({{"id", claim.id},
                    {"sentence", claim.sentence},
                    {"source", claim.source},
                    {"published", claim.published},
                    {"metric", claim.metric},
                    {"of", selector_text(claim.of)},
                    {"over", selector_text(claim.over)},
                    {"claimed", claimed_word(claim.claimed)},
                    {"within", claim.within > 0 ? ordered_json(claim.within) : ordered_json()},
                    {"verdict", finding.verdict},
                    {"reason", finding.reason},
                    {"effect", number(finding.effect)},
                    {"interval", {number(finding.low), number(finding.high)}},
                    {"ratio", number(std::exp(finding.effect))},
                    {"p_corrected", number(finding.p)},
                    {"passages", finding.passages},
                    {"layers", finding.layers},
                    {"pairs", finding.pairs},
                    {"pairs_left_out", finding.left_out},
                    {"by_text", parts_json(finding.by_text, finding)},
                    {"by_rows", parts_json(finding.by_rows, finding)},
                    {"differing", finding.differing}});
  }
  return list;
}

}  // namespace kvlab::report
