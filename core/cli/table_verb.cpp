#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string_view>

#include "base/code_version.h"
#include "base/error.h"
#include "base/names.h"
#include "base/replacement.h"
#include "cli/verbs.h"
#include "report/layout.h"
#include "report/table.h"
#include "store/store.h"

namespace kvlab::cli {
namespace {

struct Arguments {
  std::string file, out;
  std::vector<std::string> rows, cols, values;
  report::TableOptions options;
};

/// A terminal that the user has not asked to stay plain (no-color.org).
bool wants_emphasis() {
  const char* no_color = std::getenv("NO_COLOR");
  return isatty(STDOUT_FILENO) == 1 && (no_color == nullptr || *no_color == '\0');
}

/// The words of an option that may be repeated, as if they were one list.
std::string one_list(const char* option, const std::vector<std::string>& lists) {
  std::string list = join(lists, ",");
  if (!lists.empty() && list.find_first_not_of(" ,") == std::string::npos) {
    throw Error(fmt::format("{}: expected a name, found '{}'", option, list));
  }
  return list;
}

/// Whether a file may be a table of before, by its name and by being text: `--out` of the wrong
/// name must not cost an experiment, an image or results.
bool is_replaceable(const std::filesystem::path& path) {
  constexpr std::string_view kSuffixes[] = {".txt", ".md", ".tex", ".csv"};
  const std::string suffix = path.extension().string();
  if (std::find(std::begin(kSuffixes), std::end(kSuffixes), suffix) == std::end(kSuffixes)) {
    return false;
  }
  std::ifstream file(path, std::ios::binary);
  std::string begin(4096, ' ');
  file.read(begin.data(), static_cast<std::streamsize>(begin.size()));
  begin.resize(static_cast<size_t>(file.gcount()));
  return begin.find('\0') == std::string::npos;
}

void check_target(const std::string& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) return;
  if (!std::filesystem::is_regular_file(status)) {
    throw Error(fmt::format("{}: expected a file to write, found {}", path,
                            std::filesystem::is_directory(status) ? "a folder" : "a device"));
  }
  if (!is_replaceable(path)) {
    throw Error(
        fmt::format("{}: exists, and a table replaces only text files named .txt, .md, "
                    ".tex or .csv; give --out another name",
                    path));
  }
}

void write_file(const std::string& path, const std::string& text) {
  make_folder_of(path);
  Replacement replacement(path);
  {
    std::ofstream file(replacement.temp(), std::ios::binary);
    file << text;
    file.close();
    if (!file) throw Error(fmt::format("{}: cannot be written: {}", path, std::strerror(errno)));
  }
  replacement.commit();
}

void execute(const Arguments& arguments) {
  report::TableOptions options = arguments.options;
  // Escape codes are for terminals; the other formats have marks of their own.
  options.emphasis = options.format != "text" || (arguments.out.empty() && wants_emphasis());
  options.code_version = code_version();
  options.rows = one_list("--rows", arguments.rows);
  options.cols = one_list("--cols", arguments.cols);
  options.value = one_list("--value", arguments.values);
  if (!arguments.out.empty()) check_target(arguments.out);
  store::Results results = store::read_results(arguments.file, store::Detail::light);
  if (report::may_have_intervals(results)) {  // which need far more of the file
    results = store::read_results(arguments.file, store::Detail::blocks);
  }
  if (results.rows.empty()) throw Error(fmt::format("{}: has no rows", arguments.file));
  const std::string text = report::table(results, options);
  if (arguments.out.empty()) {
    fmt::print("{}", text);
  } else {
    write_file(arguments.out, text);
  }
  if (options.format == "csv") {
    for (const std::string& warning : report::table_warnings(results, options.code_version)) {
      fmt::print(stderr, "kvlab: warning: {}\n", warning);
    }
  }
}

}  // namespace

void add_table(CLI::App& app, Exit&) {
  auto arguments = std::make_shared<Arguments>();
  report::TableOptions& options = arguments->options;
  CLI::App* verb = app.add_subcommand("table", "Print a table of means from a results file");
  verb->add_option("file", arguments->file, "results file")->required();
  verb->add_option("--name", options.name, "layout: " + join(report::layout_names()));
  const auto add_list = [&](const char* name, std::vector<std::string>& words, const char* help) {
    verb->add_option(name, words, help)->take_all()->allow_extra_args(false);
  };
  add_list("--rows", arguments->rows,
           "columns of the summary that make the rows: label, layer, a sweep axis …; several, "
           "separated by commas or by repeating the option");
  add_list("--cols", arguments->cols, "columns of the summary that make the columns, as --rows");
  add_list("--value", arguments->values, "metric to show; several, as --rows, without --cols");
  verb->add_option(
      "--against", options.against,
      "a column of --cols or a row: each other value is followed by how far it is off, "
      "paired by passage");
  verb->add_option("--format", options.format, "text, markdown, latex or csv");
  verb->add_option("--out", arguments->out,
                   "file to write in place of the standard output; its folder is made, a table of "
                   "before replaced");
  verb->footer(
      "Examples: kvlab table results/demo.h5\n"
      "          kvlab table results/group_window.h5 --rows window.recent --cols group --value "
      "wo_rel\n"
      "Values are means over everything that is neither row nor column; the lines below say over "
      "what.\n"
      "From 4 passages on a mean has an interval (±, 95%, resampling passages and blocks of 128\n"
      "positions within them; from 16 on where a metric is not known by position), and from 16 on "
      "best and\n"
      "second include what cannot be told from them. A share of needles has Wilson's interval, in "
      "brackets;\n"
      "its rows have columns task, length and depth.\n"
      "Where the experiment names published numbers, the table is published | here | what differs; "
      "--name default gives the plain one.\n"
      "A dash (in CSV an empty field) stands where nothing is complete or nothing was measured.");
  verb->callback([arguments] { execute(*arguments); });
}

}  // namespace kvlab::cli
