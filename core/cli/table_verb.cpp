#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
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
  report::TableOptions options;
};

/// A terminal that the user has not asked to stay plain (no-color.org).
bool wants_emphasis() {
  const char* no_color = std::getenv("NO_COLOR");
  return isatty(STDOUT_FILENO) == 1 && (no_color == nullptr || *no_color == '\0');
}

/// A results file or capture: `--out` of the wrong file name must not cost one.
bool holds_hdf5(const std::string& path) {
  constexpr std::string_view kSignature = "\x89HDF\r\n\x1a\n";
  std::string begin(kSignature.size(), '\0');
  std::ifstream file(path, std::ios::binary);
  return file.read(begin.data(), static_cast<std::streamsize>(begin.size())) && begin == kSignature;
}

void write_file(const std::string& path, const std::string& text) {
  if (holds_hdf5(path)) {
    throw Error(fmt::format(
        "{}: is an HDF5 file; a table does not replace it, give --out another name", path));
  }
  make_folder_of(path);
  Replacement replacement(path);
  {
    std::ofstream file(replacement.temp(), std::ios::binary);
    file << text;
    file.close();
    if (!file) throw Error(fmt::format("{}: cannot be written", path));
  }
  replacement.commit();
}

void execute(const Arguments& arguments) {
  report::TableOptions options = arguments.options;
  // Escape codes are for terminals; the other formats have marks of their own.
  options.emphasis = options.format != "text" || (arguments.out.empty() && wants_emphasis());
  options.code_version = code_version();
  const store::Results results = store::read_results(arguments.file, store::Detail::blocks);
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
  verb->add_option("--rows", options.rows,
                   "columns of the summary that make the rows: label, layer, a sweep axis …");
  verb->add_option("--cols", options.cols, "columns of the summary that make the columns");
  verb->add_option("--value", options.value,
                   "metric to show; several, separated by commas, where there is no --cols");
  verb->add_option("--against", options.against,
                   "a column (or, without --cols, a row): each other value of its line is followed "
                   "by how far it is off, paired by passage");
  verb->add_option("--format", options.format, "text, markdown, latex or csv");
  verb->add_option("--out", arguments->out, "file to write in place of the standard output");
  verb->footer(
      "Examples: kvlab table results/demo.h5\n"
      "          kvlab table results/group_window.h5 --rows window.recent --cols group --value "
      "wo_rel\n"
      "Values are means over everything that is neither row nor column; the lines below say over "
      "what.\n"
      "From 4 passages on a mean has an interval (±, 95%, resampling passages and blocks of 128\n"
      "positions within them; from 16 on where a metric is not known by position), and from 16 on "
      "best and\n"
      "second include what cannot be told from them. Where the experiment names published numbers, "
      "the "
      "table is\n"
      "published | here | what differs; --name default gives the plain one.\n"
      "A dash (in CSV an empty field) stands where nothing is complete or nothing was measured.");
  verb->callback([arguments] { execute(*arguments); });
}

}  // namespace kvlab::cli
