#include <condition_variable>
#include <mutex>
#include <set>

#include "base/allocator.h"
#include "base/error.h"
#include "calibrate/prepare.h"

namespace kvlab::calibrate {

struct CalibrationStore::State {
  std::filesystem::path folder;
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::string, std::shared_ptr<const RotationLayer>> ready;
  std::set<std::string> under_way;
};

CalibrationStore::CalibrationStore(std::filesystem::path folder)
    : state_(std::make_unique<State>()) {
  state_->folder = std::move(folder);
}

CalibrationStore::~CalibrationStore() = default;

namespace {

std::shared_ptr<const RotationLayer> from_disk(const std::filesystem::path& path,
                                               const std::string& key, int64_t layer) {
  if (!std::filesystem::exists(path)) return nullptr;
  try {
    RotationFile file = read_rotation_file(path);
    const auto found = file.layers.find(layer);
    if (file.calibration != key || found == file.layers.end()) return nullptr;
    return std::make_shared<const RotationLayer>(std::move(found->second));
  } catch (const Error&) {
    return nullptr;  // a damaged file is made anew
  }
}

}  // namespace

std::shared_ptr<const RotationLayer> CalibrationStore::get(const std::string& key, int64_t layer,
                                                           const Make& make) {
  std::unique_lock lock(state_->mutex);
  state_->changed.wait(lock, [&] { return state_->under_way.count(key) == 0; });
  if (const auto found = state_->ready.find(key); found != state_->ready.end())
    return found->second;
  state_->under_way.insert(key);
  lock.unlock();

  const auto finish = [&](std::shared_ptr<const RotationLayer> made) {
    lock.lock();
    state_->under_way.erase(key);
    if (made) state_->ready[key] = made;
    state_->changed.notify_all();
    return made;
  };
  try {
    const std::filesystem::path path = state_->folder.empty()
                                           ? std::filesystem::path()
                                           : state_->folder / (key.substr(0, 32) + ".h5");
    std::shared_ptr<const RotationLayer> made;
    if (!path.empty()) made = from_disk(path, key, layer);
    if (!made) {
      RotationFile file{.method = "", .calibration = key, .layers = {{layer, make()}}};
      return_free_memory();  // making it took more than it is
      if (!path.empty()) write_rotation_file(path, file);
      made = std::make_shared<const RotationLayer>(std::move(file.layers.at(layer)));
    }
    return finish(std::move(made));
  } catch (...) {
    finish(nullptr);
    throw;
  }
}

}  // namespace kvlab::calibrate
