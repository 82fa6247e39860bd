// Runs every peer vector of a folder: data made by running the published code of each method. Says
// what failed, and closes with a count by method. Exit status 0: all agree; 1: some do not; 4: no
// folder, so nothing was compared.
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <stdexcept>

#include "peers/peer_case.h"

namespace {

constexpr int kSkipped = 4;
constexpr int kPublished = 111;  // vectors of the folder as it was handed over

struct Method {
  std::string name;  // of the case's attribute
  std::function<void(const peers::Case&, peers::Findings&)> check;
};

/// By the file's name without what follows an underscore and digits: two papers' methods have the
/// same name but for case, so the attribute alone would not do.
const std::map<std::string, Method>& methods() {
  static const std::map<std::string, Method> all = {
      {"kitty", {"Kitty", peers::check_kitty}},
      {"kivi", {"KIVI", peers::check_kivi}},
      {"kvquant", {"KVQuant", peers::check_kvquant}},
      {"optr", {"OptR", peers::check_optr}},
      {"oscar2", {"OScaR", peers::check_oscar2}},
      {"oscar_calib", {"OSCAR", peers::check_oscar_calibration}},
      {"oscar_runtime", {"OSCAR", peers::check_oscar_runtime}},
      {"quarot", {"QuaRot", peers::check_quarot}},
      {"rotatekv", {"RotateKV", peers::check_rotatekv}},
      {"turboquant", {"TurboQuant+", peers::check_turboquant}},
  };
  return all;
}

/// "oscar2_2" and "oscar2" are parts of one set, as are "oscar2_2_extra" and others to come.
std::string set_of(const std::string& stem) {
  std::string best;
  for (const auto& [name, method] : methods()) {
    const bool part = stem == name || stem.starts_with(name + "_");
    if (part && name.size() > best.size()) best = name;
  }
  return best;
}

struct Count {
  int agree = 0, all = 0;
};

std::filesystem::path folder() {
  if (const char* named = std::getenv("KVLAB_PEER_VECTORS")) return named;
  return std::filesystem::path(KVLAB_SOURCE_DIR) / "../shared/peer-vectors";
}

/// What libtorch says stands on the first line; its trace follows.
std::string first_line(const std::exception& error) {
  const std::string all = error.what();
  return all.substr(0, all.find('\n'));
}

bool check(const std::string& set, const peers::Case& vector, const std::string& where,
           bool verbose) {
  peers::Findings findings;
  try {
    const Method& method = methods().at(set);
    const std::string named = vector.method();
    if (named == method.name) {
      method.check(vector, findings);
      for (const std::string& name : vector.unread())
        findings.that(false, name + " was not compared");
    } else {
      findings.that(false,
                    fmt::format("its method is '{}', this file's are of {}", named, method.name));
    }
  } catch (const std::exception& error) {
    findings.that(false, fmt::format("{} (after {} was read)", first_line(error),
                                     vector.last_read().empty() ? "nothing" : vector.last_read()));
  }
  for (const std::string& failure : findings.failures()) {
    fmt::print("{}: {}\n", where, failure);
  }
  if (verbose) {
    for (const std::string& compared : findings.compared()) {
      fmt::print("{}: {}\n", where, compared);
    }
  }
  return findings.failures().empty();
}

/// Every case of a file; one that cannot be read is one that does not agree.
void check_file(const std::filesystem::path& path, bool verbose,
                std::map<std::string, Count>& counts) {
  const std::string name = path.filename().string();
  const std::string set = set_of(path.stem().string());
  Count& count = counts[set.empty() ? path.stem().string() : set];
  try {
    const auto file = kvlab::h5::File::open(path);
    const std::vector<std::string> cases = file.children("/");
    if (cases.empty()) throw std::runtime_error("holds no case");
    for (const std::string& one : cases) {
      ++count.all;
      const std::string where = name + "/" + one;
      if (set.empty()) {
        fmt::print("{}: nothing here checks files of this name\n", where);
      } else if (check(set, peers::Case(file, one), where, verbose)) {
        ++count.agree;
      }
      std::fflush(stdout);
    }
  } catch (const std::exception& error) {
    ++count.all;
    fmt::print("{}: {}\n", name, first_line(error));
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string only = argc > 1 && argv[1][0] != '-' ? argv[1] : "";
  const bool verbose = argc > 1 && std::string(argv[argc - 1]) == "-v";
  if (!std::filesystem::is_directory(folder())) {
    fmt::print("all {} published vectors skipped: {} is not there\n", kPublished,
               folder().string());
    return kSkipped;
  }
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder())) {
    if (entry.path().extension() == ".h5") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());

  std::map<std::string, Count> counts;
  for (const std::filesystem::path& path : files) {
    const std::string stem = path.stem().string();
    if (stem.starts_with(only)) check_file(path, verbose, counts);
  }
  Count total;
  for (const auto& [set, count] : counts) {
    total.agree += count.agree;
    total.all += count.all;
  }
  for (const auto& [set, count] : counts) {
    fmt::print("{:14} {:3} of {:3} vectors agree\n", set, count.agree, count.all);
  }
  fmt::print("{:14} {:3} of {:3} vectors agree\n", "all", total.agree, total.all);
  return total.agree == total.all && total.all > 0 ? 0 : 1;
}
