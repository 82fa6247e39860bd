#pragma once

#include <filesystem>
#include <string>

namespace kvlab {

/// A file that takes another's place in one step: write to temp(), then commit(). Whoever opens the
/// target at any moment, after a kill or a full disk too, finds the old file or the new one, whole.
class Replacement {
 public:
  explicit Replacement(const std::filesystem::path& target);
  Replacement(const Replacement&) = delete;
  ~Replacement();  // removes temp() unless committed

  /// In the target's folder, so that renaming is one step.
  const std::filesystem::path& temp() const { return temp_; }
  /// Brings the bytes to the disk and renames. Throws Error.
  void commit();

 private:
  std::filesystem::path target_;
  std::filesystem::path temp_;
  bool committed_ = false;
};

/// The file that is meant: a symbolic link stays one, and what it leads to is replaced, or made.
/// Throws Error where links lead round in a circle.
std::filesystem::path behind_links(std::filesystem::path target);

/// Removes what replacements of `target` left behind when their program was killed. Nobody may be
/// writing it.
void remove_leftovers(const std::filesystem::path& target);

/// Makes the folder that `file` is in. Throws Error.
void make_folder_of(const std::filesystem::path& file);

}  // namespace kvlab
