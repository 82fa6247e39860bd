#include <fmt/format.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <new>
#include <string_view>

#include "base/allocator.h"
#include "base/code_version.h"
#include "base/error.h"
#include "base/names.h"
#include "cli/verbs.h"
#include "run/torch_error.h"

namespace {

/// The nearest verb for an unknown first word, in CLI11's own message place.
void explain(const CLI::App& app, int argc, char** argv) {
  if (argc < 2 || argv[1][0] == '-') return;
  std::vector<std::string> verbs;
  for (const CLI::App* verb : app.get_subcommands(nullptr)) verbs.push_back(verb->get_name());
  for (const std::string& verb : verbs) {
    if (verb == argv[1]) return;
  }
  throw kvlab::Error(fmt::format("'{}' is no kvlab command{}; kvlab --help lists them", argv[1],
                                 kvlab::did_you_mean(argv[1], verbs)));
}

/// libtorch's threads wait for each other by spinning, and on a busy machine take the cores from
/// the very work they wait for, which makes cells with several threads many times slower. How to
/// wait is read when their library is loaded, before main: so a program that computes starts once
/// more with the answer in its environment, unless the user gave one.
void wait_without_spinning(int argc, char** argv) {
  const std::string_view verb = argc > 1 ? argv[1] : "";
  if (verb != "run" && verb != "calibrate" && verb != "capture") return;
  if (std::getenv("OMP_WAIT_POLICY") != nullptr || std::getenv("GOMP_SPINCOUNT") != nullptr) return;
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error || setenv("OMP_WAIT_POLICY", "passive", 1) != 0) return;
  execv(program.c_str(), argv);  // where it fails, this process goes on as it is
}

int run(int argc, char** argv) {
  using kvlab::cli::Exit;
  Exit result;
  CLI::App app("kvlab measures, ablates and races 2-bit KV-cache quantizers.", "kvlab");
  app.set_version_flag("--version", "kvlab 0.1.0, code " + kvlab::code_version());
  app.require_subcommand(1);
  app.footer(
      "Start with: kvlab run experiments/demo.yaml, then kvlab table results/demo.h5.\n"
      "kvlab COMMAND --help shows a command's options and an example.");
  kvlab::cli::add_run(app, result);
  kvlab::cli::add_validate(app, result);
  kvlab::cli::add_list(app, result);
  kvlab::cli::add_show(app, result);
  kvlab::cli::add_status(app, result);
  kvlab::cli::add_merge(app, result);
  kvlab::cli::add_table(app, result);
  kvlab::cli::add_diff(app, result);
  kvlab::cli::add_claims(app, result);
  kvlab::cli::add_calibrate(app, result);
  kvlab::cli::add_convert(app, result);
  kvlab::cli::add_capture(app, result);
  kvlab::cli::add_inspect(app, result);
  kvlab::cli::add_bench_model(app, result);
  if (argc < 2) {
    fmt::print(stderr, "{}", app.help());
    return Exit::wrong_input;
  }
  try {
    explain(app, argc, argv);
    app.parse(argc, argv);
  } catch (const CLI::Success& help) {  // --help, --version
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    fmt::print(stderr, "kvlab: {}\n", error.what());
    return Exit::wrong_input;
  }
  return result.code;
}

}  // namespace

int main(int argc, char** argv) {
  wait_without_spinning(argc, argv);
  kvlab::keep_memory_low();
  // A file that may grow no further (ulimit -f) is an error like a full disk, and not the end.
  std::signal(SIGXFSZ, SIG_IGN);
  try {
    const int code = run(argc, argv);
    // A full disk shows only now, and a cut table must not look like a whole one.
    if (std::fflush(stdout) != 0) throw kvlab::Error("the standard output cannot be written");
    return code;
  } catch (const kvlab::Error& error) {
    fmt::print(stderr, "kvlab: {}\n", error.what());
  } catch (const c10::Error& error) {
    fmt::print(stderr, "kvlab: {}\n", kvlab::run::sentence(error));
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "kvlab: out of memory\n");
  } catch (const std::exception& error) {
    fmt::print(stderr, "kvlab: {}\n", error.what());
  }
  // An interrupted run may have left threads behind, which must not see their world taken down.
  std::fflush(stderr);
  std::_Exit(kvlab::cli::Exit::wrong_input);
}
