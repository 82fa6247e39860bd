#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "config/exclusion.h"
#include "config/plan.h"
#include "config/sweep.h"

namespace kvlab::config {

/// A method at a sweep point on one layer and head size.
struct Resolved {
  method::Recipe recipe;
  nlohmann::json canonical;
  Settings requested;
  nlohmann::json rotations = nlohmann::json::object();
  std::map<std::string, std::string> learned_from;  // rotation file to the hash that it names
  std::optional<std::string> unsupported;
  std::vector<std::string> notes;
  bool needs_calibration = false;
  bool uses_seed = false;
};

/// The methods of an experiment at its sweep points, each resolved once.
class Resolver {
 public:
  using Report = std::function<void(const Mark& mark, const std::string& message)>;

  /// problem: is told what is wrong with files that methods name.
  Resolver(const Experiment& experiment, const Refuse& refuse, const std::vector<std::string>& axes,
           const std::vector<Point>& points, Report problem);

  /// The method of this place on its layer of these data.
  const Resolved& at(const Place& place, const DatasetInfo& data);

  /// Rules of `layers` that no layer asked for so far has met, as warnings at their methods.
  std::vector<std::pair<Mark, std::string>> idle_layers() const;

 private:
  struct RotationSource {
    std::string hash;         // of the file
    std::string calibration;  // of what it was learned from, as it says
  };

  /// What is known of a rotation file; a problem at `mark` where it is none.
  const RotationSource& rotation_source(const std::string& path, const Mark& mark);

  const Experiment& experiment_;
  const Refuse& refuse_;
  const std::vector<std::string>& axes_;
  const std::vector<Point>& points_;
  Report problem_;
  const bool whole_models_;
  std::map<std::tuple<size_t, size_t, ptrdiff_t, int64_t, int64_t, int64_t, DType>, Resolved>
      resolved_;
  std::set<std::pair<size_t, ptrdiff_t>>
      met_layers_;  // methods with layer rules that hold somewhere
  std::map<std::string, RotationSource> rotation_files_;
};

}  // namespace kvlab::config
