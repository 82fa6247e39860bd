#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace kvlab::zip {

/// The entries of a ZIP archive by name. Only archives whose entries are stored as they are, as
/// torch.save writes them. Throws Error with the file's name where it is no such archive, is cut
/// off or compressed, where a checksum is wrong, entries overlap or a name leads elsewhere.
std::map<std::string, std::string> read(const std::filesystem::path& path);

/// One entry of an archive to be written.
struct Entry {
  std::string name;
  std::string bytes;
};

/// The bytes of an archive that holds the entries as they are, each beginning at a multiple of 64
/// bytes.
std::string archive(const std::vector<Entry>& entries);

}  // namespace kvlab::zip
