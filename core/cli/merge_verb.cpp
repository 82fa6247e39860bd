#include <fmt/format.h>

#include <chrono>
#include <filesystem>
#include <map>
#include <memory>

#include "base/names.h"
#include "cli/verbs.h"
#include "store/store.h"

namespace kvlab::cli {
namespace {

struct Arguments {
  std::string out;
  std::vector<std::string> inputs;
};

std::string utc_now() {
  const auto now =
      std::chrono::time_point_cast<std::chrono::seconds>(std::chrono::system_clock::now());
  const auto day = std::chrono::floor<std::chrono::days>(now);
  const std::chrono::year_month_day date(day);
  const std::chrono::hh_mm_ss time(now - day);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z", static_cast<int>(date.year()),
                     static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()),
                     time.hours().count(), time.minutes().count(), time.seconds().count());
}

void execute(const Arguments& arguments) {
  const std::vector<std::filesystem::path> inputs(arguments.inputs.begin(), arguments.inputs.end());
  std::string argv = "kvlab merge " + arguments.out;
  for (const std::string& input : arguments.inputs) argv += " " + input;
  const std::map<std::string, std::string> attributes = {{"created", utc_now()}, {"argv", argv}};
  const store::MergeReport report = store::merge(arguments.out, inputs, attributes);
  for (const std::string& warning : report.warnings)
    fmt::print(stderr, "kvlab: warning: {}\n", warning);
  fmt::print("{}: {}, {} from {}\n", arguments.out, counted(report.cells, "cell"),
             counted(report.rows, "row"), counted(std::ssize(inputs), "file"));
}

}  // namespace

void add_merge(CLI::App& app, Exit&) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* verb =
      app.add_subcommand("merge", "Join shards or partial runs of one experiment into one file");
  verb->add_option("out", arguments->out, "results file to write")->required();
  verb->add_option("inputs", arguments->inputs, "results files of the same experiment")->required();
  verb->footer("Example: kvlab merge results/all.h5 results/shard1.h5 results/shard2.h5");
  verb->callback([arguments] { execute(*arguments); });
}

}  // namespace kvlab::cli
