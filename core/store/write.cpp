#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <vector>

#include "base/error.h"
#include "base/h5_digest.h"
#include "base/replacement.h"
#include "base/schemas.h"
#include "store/sources.h"

namespace kvlab::store {
namespace fs = std::filesystem;
namespace {

/// Copies groups of cells from other files, opening each once.
void copy_cells(h5::File& out, const Sources& sources) {
  std::map<fs::path, std::vector<std::string>> by_file;
  for (const auto& [id, path] : sources) by_file[path].push_back(id);
  for (const auto& [path, ids] : by_file) {
    const h5::File source = h5::File::open(path);
    for (const std::string& id : ids) out.copy_from(source, cell_group(id), cell_group(id));
  }
}

/// std::filesystem::copy_file has no better word for a full disk than "Input/output error".
void copy_bytes(const fs::path& from, const fs::path& to) {
  std::ifstream in(from, std::ios::binary);
  std::ofstream out(to, std::ios::binary);
  std::vector<char> buffer(1 << 20);
  errno = 0;
  do {
    in.read(buffer.data(), static_cast<std::streamsize>(buffer.size()));
    out.write(buffer.data(), in.gcount());
  } while (in && out);
  out.close();
  if (in.bad() || !out) {
    throw Error(fmt::format("{}: cannot be written: {}", from.string(), std::strerror(errno)));
  }
}

/// A new file that holds cells of `target`, those that `sources` names, and nothing else. Copying
/// the file's bytes and taking out the rest is many times faster than copying thousands of groups.
h5::File start_from(const fs::path& target, const fs::path& temp, const Sources& sources) {
  copy_bytes(target, temp);
  h5::File out = h5::File::edit(temp, target);
  out.remove("/summary");
  out.remove("/experiment");
  for (const std::string& name : out.attribute_names("/")) out.remove_attribute("/", name);
  for (const std::string& id : out.children("/cells")) {
    const auto source = sources.find(id);
    if (source == sources.end() || source->second != target) out.remove(cell_group(id));
  }
  return out;
}

}  // namespace

void write_file(const fs::path& target, const Results& results, const Sources& sources) {
  make_folder_of(target);
  if (fs::exists(target)) check_schema(h5::File::open(target));
  remove_leftovers(target);
  Replacement replacement(target);
  Sources elsewhere = sources;
  std::erase_if(elsewhere, [&](const auto& source) { return source.second == target; });
  h5::File out = elsewhere.size() < sources.size() ? start_from(target, replacement.temp(), sources)
                                                   : h5::File::create(replacement.temp(), target);
  for (const auto& [name, value] : results.attributes) out.set_attribute("/", name, value);
  out.set_attribute("/", "schema", kResultsSchema);
  out.write_text("/experiment/source", results.experiment_source);
  out.write_text("/experiment/resolved", results.experiment_resolved);
  h5::seal(out, "/experiment");
  out.make_group("/cells");
  copy_cells(out, elsewhere);
  for (const auto& [id, cell] : results.cells) {
    if (!sources.contains(id)) write_cell(out, cell);
  }
  write_summary(out, results);
  out.close();
  replacement.commit();
}

void write_results(const fs::path& path, const Results& results) { write_file(path, results, {}); }

void update_results(const fs::path& path, const Results& plan,
                    const std::set<std::string>& damaged) {
  Loaded stored = load(path, Detail::light, false);
  for (const std::string& id : damaged) {
    stored.results.cells.erase(id);
    stored.sources.erase(id);
  }
  Results results = plan;
  for (auto& [id, cell] : stored.results.cells) {
    const auto planned = results.cells.find(id);
    if (planned != results.cells.end() && planned->second.status != "interrupted") {
      stored.sources.erase(id);
    } else {
      results.cells[id] = std::move(cell);
    }
  }
  write_file(path, results, stored.sources);
  remove_parts(path, stored.parts);
}

FoldReport fold(const fs::path& path) {
  const Loaded stored = load(path, Detail::light);
  try {
    if (!stored.parts.files.empty()) write_file(path, stored.results, stored.sources);
  } catch (const Error& error) {
    throw Error(fmt::format("{}; {} finished cells stay in {}, the same command takes them in",
                            error.what(), stored.parts.files.size(), parts_folder(path).string()));
  }
  remove_parts(path, stored.parts);
  return {static_cast<int64_t>(stored.parts.files.size()), stored.parts.ignored};
}

}  // namespace kvlab::store
