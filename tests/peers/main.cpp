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

bool check(const std::string& set, const peers::Case& vector, const std::string& where,
           bool verbose) {
  peers::Findings findings;
  try {
    const Method& method = methods().at(set);
    findings.that(vector.method() == method.name, "the method is " + method.name);
    method.check(vector, findings);
    for (const std::string& name : vector.unread())
      findings.that(false, name + " was not compared");
  } catch (const std::exception& error) {
    findings.that(false, error.what());
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
  Count total;
  for (const std::filesystem::path& path : files) {
    const std::string stem = path.stem().string();
    if (!stem.starts_with(only)) continue;
    const std::string set = set_of(stem);
    const auto file = kvlab::h5::File::open(path);
    for (const std::string& name : file.children("/")) {
      Count& count = counts[set.empty() ? stem : set];
      ++count.all;
      ++total.all;
      const std::string where = stem + "/" + name;
      if (set.empty()) {
        fmt::print("{}: nothing here checks files of this name\n", where);
      } else if (check(set, peers::Case(file, name), where, verbose)) {
        ++count.agree;
        ++total.agree;
      }
      std::fflush(stdout);
    }
  }
  for (const auto& [set, count] : counts) {
    fmt::print("{:14} {:3} of {:3} vectors agree\n", set, count.agree, count.all);
  }
  fmt::print("{:14} {:3} of {:3} vectors agree\n", "all", total.agree, total.all);
  return total.agree == total.all && total.all > 0 ? 0 : 1;
}
