#pragma once

#include <ATen/ATen.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

/// Files of torch.save: a ZIP archive of a pickle and the bytes of tensors. Nothing in one is run:
/// the pickle is read by a machine of our own that knows plain containers, numbers, texts and
/// tensors, and refuses everything else by name.
namespace kvlab::calibrate::torch_file {

struct Member;

/// A value of such a pickle.
struct Value {
  enum class Kind { none, boolean, integer, real, text, list, dict, tensor };
  Kind kind = Kind::none;
  bool boolean = false;
  int64_t integer = 0;
  double real = 0.0;
  std::string text;
  std::vector<Value> items;     // list and tuple
  std::vector<Member> members;  // dict, in the order of the file
  at::Tensor tensor;
  int64_t nodes = 1;  // it and all within it: containers that are named twice are held twice
  int64_t depth = 1;  // levels of containers, it among them

  static Value of(int64_t number);
  static Value of(std::string text);
  static Value of(at::Tensor tensor);
  static Value dict(std::vector<Member> members);

  /// A dict's entry under a text, or nullptr.
  const Value* find(const std::string& key) const;
  /// "a dict", "the text 'x'", "a float32 tensor [2, 3]", …
  std::string describe() const;
};

/// An entry of a dict.
struct Member {
  Value key;
  Value value;
};

/// The value that the file holds. Throws Error with the file's name where it is no such file, is
/// damaged, or its pickle asks for anything but the above.
Value read(const std::filesystem::path& path);

/// Writes integers, texts, tensors of floating types and dicts of these, in one step.
void write(const std::filesystem::path& path, const Value& value);

}  // namespace kvlab::calibrate::torch_file
