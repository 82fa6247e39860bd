#include "run/samples.h"

#include <fmt/format.h>

#include "base/error.h"
#include "data/capture.h"
#include "data/synthetic.h"
#include "run/describe.h"

namespace kvlab::run {
namespace {

/// What tells one sample from another.
std::string identity(const config::DatasetItem& item, int64_t layer, int64_t seed,
                     const config::Probes& probes) {
  std::string text =
      fmt::format("{}|{}|{}|{}|{}|", item.source, layer, seed, probes.placement, probes.count);
  if (item.source == "capture") {
    return text + fmt::format("{}|{}|{}", item.stretch.first, item.stretch.count,
                              std::filesystem::absolute(item.path).string());
  }
  for (const auto& [key, value] : item.params) text += key + "=" + value.dump() + ";";
  return text;
}

std::string identity(const config::Cell& cell) {
  const bool seeded = cell.dataset.source == "synthetic";
  return identity(cell.dataset, cell.layer, seeded ? cell.seed : 0, cell.probes);
}

data::Sample load(const config::DatasetItem& item, int64_t layer, int64_t seed,
                  const config::Probes& probes, std::vector<std::string>& warnings) {
  if (item.source == "synthetic") return data::make_synthetic(item.params, seed, choice(probes));
  return data::load_capture(item.path, layer, choice(probes), item.allow_nonfinite, &warnings,
                            item.stretch);
}

}  // namespace

void Samples::expect(const config::Cell& cell) {
  const std::lock_guard lock(mutex_);
  ++entries_[identity(cell)].uses;
}

Samples::Loaded Samples::get(const config::Cell& cell) {
  std::promise<Loaded> promise;
  std::shared_future<Loaded> loaded;
  bool mine = false;
  {
    const std::lock_guard lock(mutex_);
    Entry& entry = entries_[identity(cell)];
    if (!entry.loaded.valid()) {
      entry.loaded = promise.get_future().share();
      mine = true;
    }
    loaded = entry.loaded;
  }
  if (mine) {
    try {
      Loaded made;
      made.context = std::make_shared<const metrics::SampleContext>(
          load(cell.dataset, cell.layer, cell.seed, cell.probes, made.warnings));
      promise.set_value(std::move(made));
    } catch (...) {
      promise.set_exception(std::current_exception());
    }
  }
  return loaded.get();
}

void Samples::release(const config::Cell& cell) {
  const std::lock_guard lock(mutex_);
  const auto entry = entries_.find(identity(cell));
  if (entry != entries_.end() && --entry->second.uses <= 0) entries_.erase(entry);
}

std::shared_ptr<const data::Sample> Samples::calibration(const config::Cell& cell,
                                                         int64_t of_layer) {
  if (cell.calibration.empty()) throw Error("a calibration set is missing");
  const config::DatasetItem& item = cell.calibration.front();
  const config::Probes all{.placement = "all", .count = 0};
  // A synthetic calibration set is drawn from seed 0 whatever the cell's: rotations belong to the
  // model, not the text.
  const std::string key = identity(item, of_layer, 0, all);
  const std::lock_guard lock(calibration_mutex_);
  if (auto held = calibrations_[key].lock()) return held;
  std::vector<std::string> warnings;
  const int64_t layer = item.source == "synthetic" ? 0 : of_layer;
  auto made = std::make_shared<const data::Sample>(load(item, layer, 0, all, warnings));
  calibrations_[key] = made;
  return made;
}

}  // namespace kvlab::run
