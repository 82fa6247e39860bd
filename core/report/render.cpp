#include "report/render.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <string_view>

#include "base/error.h"
#include "base/names.h"
#include "report/latex_text.h"
#include "report/text_width.h"

namespace kvlab::report {
namespace {

using Words = std::vector<std::string>;
using For = SheetColumn::For;

/// Indices of the columns for these readers.
std::vector<size_t> columns_for(const Sheet& sheet, For readers) {
  std::vector<size_t> indices;
  for (size_t i = 0; i < sheet.columns.size(); ++i) {
    const For own = sheet.columns[i].readers;
    if (own == For::all || own == readers) indices.push_back(i);
  }
  return indices;
}

std::string render_text(const Sheet& sheet, bool emphasis) {
  const std::vector<size_t> columns = columns_for(sheet, For::people);
  std::vector<size_t> widths;
  for (const size_t i : columns) {
    size_t width = display_width(sheet.columns[i].heading);
    for (const auto& line : sheet.lines) width = std::max(width, display_width(line[i].text));
    widths.push_back(width);
  }
  const auto write = [&](const auto& word_of, const auto& rank_of) {
    std::string text;
    for (size_t at = 0; at < columns.size(); ++at) {
      const size_t i = columns[at];
      if (at > 0) text += "  ";
      std::string word =
          padded(word_of(i), widths[at], sheet.columns[i].is_text ? Align::left : Align::right);
      const Rank rank = emphasis ? rank_of(i) : Rank::none;
      if (rank != Rank::none) {
        const size_t space = word.find_first_not_of(' ');
        word = fmt::format("{}\033[{}m{}\033[0m", word.substr(0, space), rank == Rank::best ? 1 : 4,
                           word.substr(space));
      }
      text += word;
    }
    // A text column that ends the line is not filled up.
    text.erase(text.find_last_not_of(' ') + 1);
    return text + '\n';
  };
  const auto plain = [](size_t) { return Rank::none; };
  std::string text = sheet.title.empty() ? "" : sheet.title + "\n\n";
  text += write([&](size_t i) { return sheet.columns[i].heading; }, plain);
  Words rules;
  for (const size_t width : widths) rules.emplace_back(width, '-');
  text += join(rules, "  ") + '\n';
  for (const auto& line : sheet.lines) {
    text += write([&](size_t i) { return line[i].text; }, [&](size_t i) { return line[i].rank; });
  }
  if (!sheet.notes.empty()) text += '\n';
  for (const std::string& note : sheet.notes) text += note + '\n';
  return text;
}

/// Text that CommonMark, with GitHub's tables and mathematics, shows as it stands. A line below
/// between letters needs no mark, nor a bracket that begins no link.
std::string escape_markdown(const std::string& text) {
  const auto is_letter = [&](size_t i) {
    const auto c = i < text.size() ? static_cast<unsigned char>(text[i]) : ' ';
    return std::isalnum(c) || c >= 0x80;
  };
  std::string escaped;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool is_within = i > 0 && is_letter(i - 1) && is_letter(i + 1);
    const bool is_link = text[i] == '[' && text.find("](", i) != std::string::npos;
    const std::string_view signs = "\\`*|<~$&";
    if (signs.find(text[i]) != std::string_view::npos || (text[i] == '_' && !is_within) ||
        is_link) {
      escaped += '\\';
    }
    escaped += text[i];
  }
  return escaped;
}

std::string render_markdown(const Sheet& sheet, bool emphasis) {
  const std::vector<size_t> columns = columns_for(sheet, For::people);
  const auto write = [](const Words& words) { return "| " + join(words, " | ") + " |\n"; };
  Words heading, rules;
  for (const size_t i : columns) {
    heading.push_back(escape_markdown(sheet.columns[i].heading));
    rules.emplace_back(sheet.columns[i].is_text ? "---" : "---:");
  }
  std::string text = sheet.title.empty() ? "" : escape_markdown(sheet.title) + "\n\n";
  text += write(heading) + write(rules);
  for (const auto& line : sheet.lines) {
    Words words;
    for (const size_t i : columns) {
      const std::string word = escape_markdown(line[i].text);
      const Rank rank = emphasis ? line[i].rank : Rank::none;
      words.push_back(rank == Rank::best     ? "**" + word + "**"
                      : rank == Rank::second ? "<u>" + word + "</u>"
                                             : word);
    }
    text += write(words);
  }
  if (!sheet.notes.empty()) text += '\n';
  for (const std::string& note : sheet.notes) text += "- " + escape_markdown(note) + '\n';
  return text;
}

std::string render_latex(const Sheet& sheet, bool emphasis) {
  const std::vector<size_t> columns = columns_for(sheet, For::people);
  std::string text = "% \\usepackage{booktabs}\n";
  if (!sheet.title.empty()) text += "% " + one_line(sheet.title) + '\n';
  for (const std::string& note : sheet.notes) text += "% " + one_line(note) + '\n';
  std::string alignment;
  Words heading;
  for (const size_t i : columns) {
    alignment += sheet.columns[i].is_text ? 'l' : 'r';
    heading.push_back(latex_text(sheet.columns[i].heading));
  }
  text += "\\begin{tabular}{" + alignment + "}\n\\toprule\n" + join(heading, " & ") +
          " \\\\\n\\midrule\n";
  for (const auto& line : sheet.lines) {
    Words words;
    for (const size_t i : columns) {
      // A lone dash stands for a missing value, a longer one in print.
      const std::string word = line[i].text == "-" ? "--" : latex_text(line[i].text);
      const Rank rank = emphasis ? line[i].rank : Rank::none;
      words.push_back(rank == Rank::best     ? "\\textbf{" + word + "}"
                      : rank == Rank::second ? "\\underline{" + word + "}"
                                             : word);
    }
    text += join(words, " & ") + " \\\\\n";
  }
  return text + "\\bottomrule\n\\end{tabular}\n";
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

std::string render_csv(const Sheet& sheet) {
  const std::vector<size_t> columns = columns_for(sheet, For::programs);
  const auto write = [&](const auto& word_of) {
    Words words;
    for (const size_t i : columns) words.push_back(csv_field(word_of(i)));
    return join(words, ",") + "\r\n";
  };
  std::string text = write([&](size_t i) { return sheet.columns[i].exact_heading; });
  for (const auto& line : sheet.lines) text += write([&](size_t i) { return line[i].exact; });
  return text;
}

}  // namespace

const std::vector<std::string>& format_names() {
  static const Words names = {"text", "markdown", "latex", "csv"};
  return names;
}

void check_format(const std::string& format) {
  const Words& names = format_names();
  if (std::find(names.begin(), names.end(), format) != names.end()) return;
  throw Error(fmt::format("--format: there is no format '{}'{}; choose from {}", format,
                          did_you_mean(format, names), join(names)));
}

std::string render(const Sheet& sheet, const std::string& format, bool emphasis) {
  if (format == "csv") return render_csv(sheet);
  if (format == "latex") return render_latex(sheet, emphasis);
  if (format == "markdown") return render_markdown(sheet, emphasis);
  return render_text(sheet, emphasis);
}

}  // namespace kvlab::report
