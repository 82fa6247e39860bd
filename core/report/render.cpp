#include "report/render.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/names.h"
#include "metrics_catalog/catalog.h"
#include "report/number_text.h"
#include "report/text_width.h"

namespace kvlab::report {
namespace {

using Words = std::vector<std::string>;

enum class Rank { none, best, second };

/// Whether a smaller (or larger) value of the metric makes a better method.
bool has_a_best(const std::string& metric) {
  const metrics::MetricInfo* info = metrics::find_metric(metric);
  return info && info->measure != "tni";
}

/// The rank of each line's value in a column. Partial means and lines that quantize nothing do not
/// compete.
std::vector<Rank> ranks_of(const Grid& grid, size_t column) {
  std::vector<Rank> ranks(grid.lines.size(), Rank::none);
  const std::string& metric = grid.columns[column].metric;
  if (!has_a_best(metric)) return ranks;
  const double sign = metrics::find_metric(metric)->larger_is_better ? -1 : 1;
  const auto competes = [&](const Line& line) {
    const Value& value = line.values[column];
    return !line.is_exact && !value.is_partial && std::isfinite(value.mean);
  };
  std::set<double> values;
  for (const Line& line : grid.lines) {
    if (competes(line)) values.insert(sign * line.values[column].mean);
  }
  if (values.size() < 2) return ranks;
  const double best = *values.begin();
  const double second = *std::next(values.begin());
  for (size_t i = 0; i < grid.lines.size(); ++i) {
    if (!competes(grid.lines[i])) continue;
    const double value = sign * grid.lines[i].values[column].mean;
    if (value == best) ranks[i] = Rank::best;
    if (value == second) ranks[i] = Rank::second;
  }
  return ranks;
}

/// " [0.01, 0.02]" where there is an interval.
std::string interval_text(const Value& value) {
  if (!value.interval) return "";
  return fmt::format(" [{}, {}]", short_number(value.interval->first),
                     short_number(value.interval->second));
}

/// Whether some line has an interval in this column.
bool has_intervals(const Grid& grid, size_t column) {
  return std::any_of(grid.lines.begin(), grid.lines.end(),
                     [&](const Line& line) { return line.values[column].interval.has_value(); });
}

/// A table's texts: headings, then lines; the first `text_columns` are left-aligned.
struct Texts {
  Words heading;
  std::vector<Words> lines;
  std::vector<std::vector<Rank>> ranks;  // as `lines`
  size_t text_columns = 0;
};

Texts texts_of(const Grid& grid, const Notes& notes) {
  const bool is_pivot = !grid.layout.cols.empty();
  Texts texts;
  texts.text_columns = grid.layout.rows.size();
  texts.heading = grid.layout.rows;
  for (const Column& column : grid.columns) {
    texts.heading.push_back(is_pivot ? one_line(join(column.keys, " / ")) : column.metric);
  }
  texts.heading.emplace_back("cells");
  std::vector<std::vector<Rank>> by_column;
  for (size_t i = 0; i < grid.columns.size(); ++i) by_column.push_back(ranks_of(grid, i));
  for (size_t i = 0; i < grid.lines.size(); ++i) {
    const Line& line = grid.lines[i];
    Words words;
    for (const std::string& key : line.keys) words.push_back(one_line(key));
    words.front() += notes.marks[i];
    if (!is_pivot && line.values.front().is_partial) words.front() += kPartialMark;
    std::vector<Rank> ranks(words.size(), Rank::none);
    for (size_t column = 0; column < grid.columns.size(); ++column) {
      const Value& value = line.values[column];
      words.push_back(short_number(value.mean) + interval_text(value));
      if (is_pivot && value.is_partial) words.back() += kPartialMark;
      ranks.push_back(by_column[column][i]);
    }
    words.push_back(fmt::format("{}", line.cells));
    ranks.push_back(Rank::none);
    texts.lines.push_back(std::move(words));
    texts.ranks.push_back(std::move(ranks));
  }
  return texts;
}

/// "wo_rel by label (rows) and layer (columns)"; nothing where the headings say it.
std::string title_of(const Grid& grid) {
  if (grid.layout.cols.empty()) return "";
  return fmt::format("{} by {} (rows) and {} (columns)\n\n", grid.layout.metrics.front(),
                     join(grid.layout.rows), join(grid.layout.cols));
}

std::string escape_markdown(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '|' || c == '<') escaped += '\\';
    escaped += c;
  }
  return escaped;
}

std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"') quoted += '"';
    quoted += c;
  }
  return quoted + '"';
}

std::string csv_record(const Words& fields) {
  Words quoted;
  for (const std::string& field : fields) quoted.push_back(csv_field(field));
  return join(quoted, ",") + "\r\n";
}

}  // namespace

std::string render_text(const Grid& grid, const Notes& notes, bool emphasis) {
  const Texts texts = texts_of(grid, notes);
  std::vector<size_t> widths;
  for (size_t i = 0; i < texts.heading.size(); ++i) {
    size_t width = display_width(texts.heading[i]);
    for (const Words& line : texts.lines) width = std::max(width, display_width(line[i]));
    widths.push_back(width);
  }
  const auto write = [&](const Words& words, const std::vector<Rank>& ranks) {
    std::string line;
    for (size_t i = 0; i < words.size(); ++i) {
      if (i > 0) line += "  ";
      std::string word =
          padded(words[i], widths[i], i < texts.text_columns ? Align::left : Align::right);
      if (emphasis && ranks[i] != Rank::none) {
        const size_t space = word.find_first_not_of(' ');
        word = fmt::format("{}\033[{}m{}\033[0m", word.substr(0, space),
                           ranks[i] == Rank::best ? 1 : 4, word.substr(space));
      }
      line += word;
    }
    return line + '\n';
  };
  const std::vector<Rank> plain(texts.heading.size(), Rank::none);
  std::string text = title_of(grid) + write(texts.heading, plain);
  Words rules;
  for (const size_t width : widths) rules.emplace_back(width, '-');
  text += write(rules, plain);
  for (size_t i = 0; i < texts.lines.size(); ++i) text += write(texts.lines[i], texts.ranks[i]);
  if (!notes.lines.empty()) text += '\n';
  for (const std::string& note : notes.lines) text += note + '\n';
  return text;
}

std::string render_markdown(const Grid& grid, const Notes& notes, bool emphasis) {
  const Texts texts = texts_of(grid, notes);
  const auto write = [&](const Words& words) { return "| " + join(words, " | ") + " |\n"; };
  Words heading, rules;
  for (size_t i = 0; i < texts.heading.size(); ++i) {
    heading.push_back(escape_markdown(texts.heading[i]));
    rules.emplace_back(i < texts.text_columns ? "---" : "---:");
  }
  std::string text = title_of(grid) + write(heading) + write(rules);
  for (size_t i = 0; i < texts.lines.size(); ++i) {
    Words words;
    for (size_t column = 0; column < texts.lines[i].size(); ++column) {
      const std::string word = escape_markdown(texts.lines[i][column]);
      const Rank rank = emphasis ? texts.ranks[i][column] : Rank::none;
      words.push_back(rank == Rank::best     ? "**" + word + "**"
                      : rank == Rank::second ? "<u>" + word + "</u>"
                                             : word);
    }
    text += write(words);
  }
  if (!notes.lines.empty()) text += '\n';
  for (const std::string& note : notes.lines) text += "- " + escape_markdown(note) + '\n';
  return text;
}

std::string render_csv(const Grid& grid) {
  Words heading = grid.layout.rows;
  for (size_t column = 0; column < grid.columns.size(); ++column) {
    const std::vector<std::string>& keys = grid.columns[column].keys;
    Words parts;
    for (size_t i = 0; i < keys.size(); ++i) {
      parts.push_back(grid.layout.cols[i] + "=" + keys[i]);
    }
    const std::string name = parts.empty() ? grid.columns[column].metric : join(parts, " ");
    heading.push_back(name);
    if (has_intervals(grid, column)) heading.insert(heading.end(), {name + "_low", name + "_high"});
  }
  heading.emplace_back("cells");
  std::string text = csv_record(heading);
  for (const Line& line : grid.lines) {
    Words fields = line.keys;
    for (size_t column = 0; column < grid.columns.size(); ++column) {
      const Value& value = line.values[column];
      fields.push_back(exact_number(value.mean));
      if (!has_intervals(grid, column)) continue;
      fields.push_back(value.interval ? exact_number(value.interval->first) : "");
      fields.push_back(value.interval ? exact_number(value.interval->second) : "");
    }
    fields.push_back(fmt::format("{}", line.cells));
    text += csv_record(fields);
  }
  return text;
}

}  // namespace kvlab::report
