#include <fmt/format.h>

#include "base/error.h"
#include "base/schemas.h"
#include "store/sources.h"

namespace kvlab::store {
namespace fs = std::filesystem;
namespace {

std::map<std::string, std::string> read_attributes(const h5::File& file) {
  std::map<std::string, std::string> attributes;
  for (const std::string& name : file.attribute_names("/")) {
    switch (file.attribute_info("/", name).element.kind) {
      case h5::Element::Kind::text:
        attributes[name] = file.attribute<std::string>("/", name);
        break;
      case h5::Element::Kind::integer:
      case h5::Element::Kind::unsigned_integer:
        attributes[name] = fmt::format("{}", file.attribute<int64_t>("/", name));
        break;
      case h5::Element::Kind::real:
        attributes[name] = fmt::format("{}", file.attribute<double>("/", name));
        break;
      case h5::Element::Kind::other:
        break;
    }
  }
  return attributes;
}

}  // namespace

void check_schema(const h5::File& file) {
  const std::string path = file.path().string();
  const auto schema = file.attribute_or<std::string>("/", "schema", "");
  if (schema == kResultsSchema) return;
  if (schema.empty()) {
    throw Error(
        fmt::format("{}: not a results file: attribute 'schema' should be '{}', it is missing",
                    path, kResultsSchema));
  }
  if (schema.starts_with("kvlab.results/")) {
    throw Error(
        fmt::format("{}: written as {}, and this program reads {}: use the kvlab that wrote it, "
                    "or run the experiment again into another file",
                    path, schema, kResultsSchema));
  }
  throw Error(
      fmt::format("{}: not a results file: expected {}, found {}", path, kResultsSchema, schema));
}

Loaded load(const fs::path& path, Detail detail, bool required) {
  Loaded loaded;
  // Parts first: one that is folded in meanwhile is then found in the file.
  loaded.parts = find_parts(path);
  std::map<std::string, CellResult> from_parts;
  for (const auto& [id, part] : loaded.parts.files) {
    try {
      from_parts[id] = read_cell(h5::File::open(part), id, detail);
      loaded.sources[id] = part;
    } catch (const Error&) {
      if (fs::exists(part)) throw;
    }
  }
  Results& results = loaded.results;
  if (required || fs::exists(path)) {
    if (!fs::exists(path) && !from_parts.empty()) {
      throw Error(
          fmt::format("{}: no such file; {} finished cells are in {}: run the experiment "
                      "again to take them in",
                      path.string(), from_parts.size(), parts_folder(path).string()));
    }
    const h5::File file = h5::File::open(path);
    check_schema(file);
    results.attributes = read_attributes(file);
    results.experiment_source = file.read_text("/experiment/source");
    results.experiment_resolved = file.read_text("/experiment/resolved");
    for (const std::string& id : file.children("/cells")) {
      results.cells[id] = read_cell(file, id, detail);
      loaded.sources.emplace(id, path);
    }
    read_summary(file, &results);
  }
  for (auto& [id, cell] : from_parts) results.cells[id] = std::move(cell);
  return loaded;
}

Results read_results(const fs::path& path, Detail detail) { return load(path, detail).results; }

}  // namespace kvlab::store
