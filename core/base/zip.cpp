#include "base/zip.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>

#include "base/error.h"
#include "base/utf8.h"

namespace kvlab::zip {
namespace {

constexpr uint32_t kLocal = 0x04034b50;
constexpr uint32_t kCentral = 0x02014b50;
constexpr uint32_t kEnd = 0x06054b50;
constexpr uint32_t kEnd64 = 0x06064b50;
constexpr uint32_t kLocator64 = 0x07064b50;
constexpr uint64_t kSeeExtra = 0xffffffff;  // the number stands in a ZIP64 extra field
constexpr size_t kEndBytes = 22;
constexpr size_t kLocator64Bytes = 20;
constexpr size_t kCentralBytes = 46;
constexpr size_t kLocalBytes = 30;
constexpr size_t kAlignment = 64;

/// The bytes of a file with checked access.
class Bytes {
 public:
  explicit Bytes(const std::filesystem::path& path) : path_(path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) throw Error(fmt::format("{}: cannot be opened", path.string()));
    bytes_.assign(std::istreambuf_iterator<char>(file), {});
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw Error(fmt::format("{}: {}", path_.string(), what));
  }

  std::string_view part(uint64_t at, uint64_t size) const {
    if (at > bytes_.size() || size > bytes_.size() - at) {
      fail(fmt::format("ends at byte {}, where {} more were expected from byte {} on",
                       bytes_.size(), size, at));
    }
    return std::string_view(bytes_).substr(at, size);
  }

  /// A little-endian number.
  uint64_t number(uint64_t at, size_t size) const {
    const std::string_view bytes = part(at, size);
    uint64_t value = 0;
    for (size_t i = size; i-- > 0;) value = value << 8 | static_cast<uint8_t>(bytes[i]);
    return value;
  }

  size_t size() const { return bytes_.size(); }

 private:
  std::filesystem::path path_;
  std::string bytes_;
};

struct Directory {
  uint64_t entries = 0, at = 0;
};

Directory find_directory(const Bytes& file) {
  constexpr size_t kMostComment = 0xffff;
  if (file.size() < kEndBytes) file.fail("is no ZIP archive: too short");
  const size_t last = file.size() - kEndBytes;
  const size_t first = last > kMostComment ? last - kMostComment : 0;
  for (size_t at = last + 1; at-- > first;) {
    if (file.number(at, 4) != kEnd) continue;
    if (at >= kLocator64Bytes && file.number(at - kLocator64Bytes, 4) == kLocator64) {
      const uint64_t end = file.number(at - kLocator64Bytes + 8, 8);
      if (file.number(end, 4) != kEnd64) file.fail("has a damaged ZIP64 directory");
      return {file.number(end + 32, 8), file.number(end + 48, 8)};
    }
    return {file.number(at + 10, 2), file.number(at + 16, 4)};
  }
  file.fail("is no ZIP archive, as torch.save has written since version 1.6");
}

/// A size or an offset of a directory entry, from its extra field where it does not fit.
class Extra {
 public:
  Extra(const Bytes& file, uint64_t at, uint64_t size) : file_(file) {
    const uint64_t end = at + size;
    while (at + 4 <= end) {
      const uint64_t length = file.number(at + 2, 2);
      if (file.number(at, 2) == 1) next_ = at + 4;
      at += 4 + length;
    }
  }

  uint64_t resolve(uint64_t number) {
    if (number != kSeeExtra) return number;
    if (next_ == 0) file_.fail("has an entry without its ZIP64 sizes");
    const uint64_t value = file_.number(next_, 8);
    next_ += 8;
    return value;
  }

 private:
  const Bytes& file_;
  uint64_t next_ = 0;
};

uint32_t checksum(std::string_view bytes) {
  static const std::array<uint32_t, 256> table = [] {
    std::array<uint32_t, 256> values{};
    for (uint32_t i = 0; i < values.size(); ++i) {
      uint32_t value = i;
      for (int bit = 0; bit < 8; ++bit) value = (value & 1) ? 0xedb88320 ^ value >> 1 : value >> 1;
      values[i] = value;
    }
    return values;
  }();
  uint32_t sum = 0xffffffff;
  for (const char byte : bytes) sum = table[(sum ^ static_cast<uint8_t>(byte)) & 0xff] ^ sum >> 8;
  return ~sum;
}

/// Whether a path of this name lies below the folder that it is taken in.
bool stays_below(std::string_view name) {
  if (name.empty() || name.front() == '/' || name.find('\\') != std::string_view::npos)
    return false;
  for (size_t at = 0; at <= name.size();) {
    const size_t end = std::min(name.find('/', at), name.size());
    if (name.substr(at, end - at) == "..") return false;
    at = end + 1;
  }
  return true;
}

void put(std::string& out, uint64_t value, size_t size) {
  for (size_t i = 0; i < size; ++i) out.push_back(static_cast<char>(value >> 8 * i & 0xff));
}

/// What a local header and a directory entry have in common: version to comment, name and sizes.
void put_common(std::string& out, const Entry& entry, size_t extra) {
  put(out, 0, 2);     // flags
  put(out, 0, 2);     // stored
  put(out, 0, 2);     // time
  put(out, 0x21, 2);  // 1980-01-01: the same input gives the same bytes
  put(out, checksum(entry.bytes), 4);
  put(out, entry.bytes.size(), 4);
  put(out, entry.bytes.size(), 4);
  put(out, entry.name.size(), 2);
  put(out, extra, 2);
}

}  // namespace

std::map<std::string, std::string> read(const std::filesystem::path& path) {
  const Bytes file(path);
  const Directory directory = find_directory(file);
  std::map<std::string, std::string> entries;
  uint64_t at = directory.at;
  uint64_t total = 0;
  for (uint64_t i = 0; i < directory.entries; ++i) {
    if (file.number(at, 4) != kCentral) file.fail("has a damaged ZIP directory");
    const uint64_t name_size = file.number(at + 28, 2);
    const uint64_t extra_size = file.number(at + 30, 2);
    const std::string name(file.part(at + kCentralBytes, name_size));
    if (!stays_below(name)) {
      file.fail(fmt::format("entry '{}' has a name that leads out of the archive", readable(name)));
    }
    if (file.number(at + 10, 2) != 0) {
      file.fail(
          fmt::format("entry '{}' is compressed, expected one stored as it is", readable(name)));
    }
    Extra extra(file, at + kCentralBytes + name_size, extra_size);
    const uint64_t size = extra.resolve(file.number(at + 24, 4));
    const uint64_t held = extra.resolve(file.number(at + 20, 4));
    const uint64_t local = extra.resolve(file.number(at + 42, 4));
    if (held != size) file.fail(fmt::format("entry '{}' has two sizes", readable(name)));
    if (file.number(local, 4) != kLocal)
      file.fail(fmt::format("entry '{}' is damaged", readable(name)));
    const uint64_t begin =
        local + kLocalBytes + file.number(local + 26, 2) + file.number(local + 28, 2);
    const std::string_view bytes = file.part(begin, size);
    // Entries that share bytes could be far larger together than the archive.
    total += size;
    if (total > file.size()) file.fail("has entries that lie over each other");
    if (checksum(bytes) != file.number(at + 16, 4)) {
      file.fail(
          fmt::format("entry '{}' is damaged: its checksum is not the one stored", readable(name)));
    }
    if (!entries.emplace(name, bytes).second)
      file.fail(fmt::format("holds '{}' twice", readable(name)));
    at += kCentralBytes + name_size + extra_size + file.number(at + 32, 2);
  }
  return entries;
}

std::string archive(const std::vector<Entry>& entries) {
  std::string out;
  std::string directory;
  for (const Entry& entry : entries) {
    if (entry.bytes.size() >= kSeeExtra || out.size() >= kSeeExtra) {
      throw Error("an archive of 4 GiB or more cannot be written");
    }
    const size_t local = out.size();
    const size_t begin = local + kLocalBytes + entry.name.size() + 4;
    const size_t fill = (kAlignment - begin % kAlignment) % kAlignment;
    put(out, kLocal, 4);
    put(out, 20, 2);
    put_common(out, entry, 4 + fill);
    out += entry.name;
    put(out, 0x4246, 2);  // "FB", as torch.save fills
    put(out, fill, 2);
    out.append(fill, 'Z');
    out += entry.bytes;

    put(directory, kCentral, 4);
    put(directory, 20, 2);
    put(directory, 20, 2);
    put_common(directory, entry, 0);
    put(directory, 0, 2 + 2 + 2 + 4);  // comment, disk, attributes
    put(directory, local, 4);
    directory += entry.name;
  }
  const size_t at = out.size();
  out += directory;
  put(out, kEnd, 4);
  put(out, 0, 4);
  put(out, entries.size(), 2);
  put(out, entries.size(), 2);
  put(out, directory.size(), 4);
  put(out, at, 4);
  put(out, 0, 2);
  return out;
}

}  // namespace kvlab::zip
