#pragma once

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/part.h"
#include "data/description.h"
#include "method/recipe.h"

namespace kvlab::config {

/// Where something is written, for messages about it; line 0 where there is no line, as in a
/// command-line edit.
struct Mark {
  std::string file;
  int line = 0;
  int column = 0;
};

/// What a whole-model item is beside its folder, and how it is run (contract section 7).
struct ModelRun {
  std::filesystem::path tokens;   // kvlab.tokens/1: resolved, absolute; or
  std::filesystem::path needles;  // kvlab.needles/1
  std::string task;               // needles: the group of trials
  int64_t passage = 0;
  int64_t length = 0;                         // first tokens of the passage; 0: all
  std::string evaluation = "teacher_forced";  // | decode
  std::string prefill = "streaming";          // | exact
  DType cache_dtype = DType::bf16;
  std::string device = "cpu";  // | cuda
  DType dtype = DType::fp32;   // of weights and hidden states
};

/// Where samples come from: one entry of `dataset:` or `calibration:`; of a model item, one of its
/// passages or tasks.
struct DatasetItem {
  std::string source;  // "synthetic", "capture" or "model"
  std::string label;   // what the summary column `dataset` shows: the file's stem, or the pattern;
                       // unique in a file
  Settings params;     // synthetic: every key of data::synthetic_params()
  std::filesystem::path path;   // capture, model (a folder): resolved, absolute
  std::vector<int64_t> layers;  // capture: empty means all
  data::Stretch stretch = {};   // capture: which of its tokens
  std::string text;             // whose writing it is: what tables and claims tell apart
  bool allow_nonfinite = false;
  std::optional<ModelRun> model = {};    // set where source is "model"
  std::vector<DatasetItem> calibration;  // none or one: the item's own
  Mark mark = {};
  std::vector<Mark> layer_marks = {};  // one for each of `layers`
};

/// Which queries are measured (contract section 1).
struct Probes {
  std::string placement = "strided";  // strided | last | all
  int64_t count = 64;
};

/// One entry of `methods:`.
struct MethodUse {
  std::string label;
  method::Recipe recipe;  // edits of `set:` applied
  Mark mark = {};
  std::vector<std::string> notes = {};  // warnings of each of its rows
};

/// One key of a sweep. The axes of `grid` are multiplied, those of `zip` walk in step.
struct SweepAxis {
  std::string key;  // of a recipe ("group", "window.recent") or of a synthetic dataset ("tokens");
                    // the summary column
  std::vector<nlohmann::json> values;
  Mark mark = {};
};

/// Points that are left out on purpose.
struct Exclude {
  nlohmann::json when;  // key to a value or a list of them: method (id or label), dataset (label),
                        // layer, seed, an axis
  std::string reason;
  Mark mark = {};
};

/// A read and checked experiment file (contract section 3).
struct Experiment {
  std::string name;
  std::string description;
  std::filesystem::path file;
  std::vector<DatasetItem> datasets;
  std::vector<MethodUse> methods;
  std::vector<SweepAxis> grid;
  std::vector<SweepAxis> zip;
  std::vector<Exclude> excludes;
  std::vector<std::string> measure;
  Probes probes;
  std::vector<int64_t> seeds{0};
  std::vector<DatasetItem> calibration;  // none or one
  std::filesystem::path output;          // as written; relative to where the command runs
  std::string backend = "reference";
  std::string source_text;    // the YAML as given
  std::string resolved_text;  // after includes and --set, YAML
};

struct DatasetInfo;  // plan.h

/// Reads the shape of a dataset item. Throws Error where the file is missing or wrong.
using Describe = std::function<DatasetInfo(const DatasetItem&)>;

/// Reads an experiment file with its includes and the `--set KEY=VALUE` edits (see document.h for
/// both). Throws ConfigError with every mistake found, each with file, line and column; with
/// `describe`, mistakes in the files of datasets among them. Of an experiment without any other
/// these are left to make_plan(), which knows the points of the sweep.
Experiment load(const std::filesystem::path& file, const std::vector<std::string>& edits,
                const Describe* describe = nullptr);

}  // namespace kvlab::config
