#include "calibrate/torch_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <fstream>
#include <map>
#include <string_view>

#include "base/error.h"
#include "base/replacement.h"
#include "base/utf8.h"
#include "base/zip.h"
#include "calibrate/unpickle.h"

namespace kvlab::calibrate::torch_file {
namespace {

/// Writes a value as a pickle of protocol 2 and collects the tensors' bytes.
class Writer {
 public:
  std::string pickle(const Value& value) {
    out_ = "\x80\x02";
    add(value);
    out_ += '.';
    return std::move(out_);
  }
  const std::vector<std::string>& storages() const { return storages_; }

 private:
  void number(uint64_t value, size_t size) {
    for (size_t i = 0; i < size; ++i) out_.push_back(static_cast<char>(value >> 8 * i & 0xff));
  }
  void integer(int64_t value) {
    out_ += "\x8a\x08";
    number(static_cast<uint64_t>(value), 8);
  }
  void text(const std::string& value) {
    out_ += 'X';
    number(value.size(), 4);
    out_ += value;
  }
  void global(const std::string& module, const std::string& name) {
    out_ += "c" + module + "\n" + name + "\n";
  }
  void tuple(at::IntArrayRef numbers) {
    out_ += '(';
    for (const int64_t one : numbers) integer(one);
    out_ += 't';
  }

  void tensor(const at::Tensor& x) {
    const at::Tensor flat = x.contiguous();
    global("torch._utils", "_rebuild_tensor_v2");
    out_ += "((";
    text("storage");
    for (const StorageType& type : kStorageTypes) {
      if (type.type == flat.scalar_type()) global("torch", type.name);
    }
    text(std::to_string(storages_.size()));
    text("cpu");
    integer(flat.numel());
    out_ += "tQ";
    integer(0);
    tuple(flat.sizes());
    tuple(flat.strides());
    out_ += '\x89';
    global("collections", "OrderedDict");
    out_ += ")RtR";
    storages_.emplace_back(static_cast<const char*>(flat.const_data_ptr()), flat.nbytes());
  }

  void add(const Value& value) {
    switch (value.kind) {
      case Value::Kind::integer:
        return integer(value.integer);
      case Value::Kind::text:
        return text(value.text);
      case Value::Kind::tensor:
        return tensor(value.tensor);
      default:
        break;
    }
    out_ += "}(";
    for (const auto& [key, member] : value.members) {
      add(key);
      add(member);
    }
    out_ += 'u';
  }

  std::string out_;
  std::vector<std::string> storages_;
};

}  // namespace

Value Value::of(int64_t number) {
  Value value;
  value.kind = Kind::integer;
  value.integer = number;
  return value;
}

Value Value::of(std::string text) {
  Value value;
  value.kind = Kind::text;
  value.text = std::move(text);
  return value;
}

Value Value::of(at::Tensor tensor) {
  Value value;
  value.kind = Kind::tensor;
  value.tensor = std::move(tensor);
  return value;
}

Value Value::dict(std::vector<Member> members) {
  Value value;
  value.kind = Kind::dict;
  value.members = std::move(members);
  return value;
}

const Value* Value::find(const std::string& key) const {
  for (const auto& [name, member] : members) {
    if (name.kind == Kind::text && name.text == key) return &member;
  }
  return nullptr;
}

std::string Value::describe() const {
  switch (kind) {
    case Kind::none:
      return "None";
    case Kind::boolean:
      return boolean ? "True" : "False";
    case Kind::integer:
      return fmt::format("the number {}", integer);
    case Kind::real:
      return fmt::format("the number {}", real);
    case Kind::text:
      return fmt::format("the text '{}'", readable(text));
    case Kind::list:
      return fmt::format("a list of {}", items.size());
    case Kind::dict:
      return "a dict";
    case Kind::tensor:
      return fmt::format("a {} tensor [{}]", c10::toString(tensor.scalar_type()),
                         fmt::join(tensor.sizes().vec(), ", "));
  }
  return "";
}

Value read(const std::filesystem::path& path) {
  const std::map<std::string, std::string> entries = zip::read(path);
  constexpr std::string_view kPickle = "/data.pkl";
  for (const auto& [name, bytes] : entries) {
    if (!name.ends_with(kPickle)) continue;
    const std::string folder = name.substr(0, name.size() - kPickle.size() + 1);
    const auto order = entries.find(folder + "byteorder");
    if (order != entries.end() && order->second != "little") {
      throw Error(fmt::format("{}: has byte order '{}', expected little", path.string(),
                              readable(order->second)));
    }
    return unpickle(path.string(), entries, folder);
  }
  throw Error(fmt::format("{}: holds no data.pkl, expected a file of torch.save", path.string()));
}

void write(const std::filesystem::path& path, const Value& value) {
  Writer writer;
  const std::string folder = path.stem().string() + "/";
  std::vector<zip::Entry> entries = {{folder + "data.pkl", writer.pickle(value)},
                                     {folder + "byteorder", "little"}};
  for (size_t i = 0; i < writer.storages().size(); ++i) {
    entries.push_back({folder + "data/" + std::to_string(i), writer.storages()[i]});
  }
  entries.push_back({folder + "version", "3\n"});
  const std::string bytes = zip::archive(entries);
  make_folder_of(path);
  Replacement replacement(path);
  std::ofstream file(replacement.temp(), std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  if (!file) throw Error(fmt::format("{}: cannot be written", path.string()));
  replacement.commit();
}

}  // namespace kvlab::calibrate::torch_file
