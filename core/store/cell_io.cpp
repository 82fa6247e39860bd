#include "store/cell_io.h"

#include <algorithm>

#include "base/h5_digest.h"

namespace kvlab::store {
namespace {

using Arrays = std::map<std::string, Array>;

void write_arrays(h5::File& file, const std::string& group, const Arrays& arrays) {
  if (arrays.empty()) return;
  file.make_group(group);
  for (const auto& [name, array] : arrays) {
    file.write(group + "/" + name, array.data.data(), array.shape);
  }
}

void write_float_arrays(h5::File& file, const std::string& group, const Arrays& arrays) {
  for (const auto& [name, array] : arrays) {
    const std::vector<float> values(array.data.begin(), array.data.end());
    file.write(group + "/" + name, values.data(), array.shape);
  }
}

Arrays read_arrays(const h5::File& file, const std::string& group) {
  Arrays arrays;
  if (!file.exists(group)) return arrays;
  for (const std::string& name : file.children(group)) {
    const std::string path = group + "/" + name;
    arrays[name] = {file.info(path).shape, file.read<double>(path)};
  }
  return arrays;
}

void read_span(const h5::File& file, const std::string& group, const std::string& name,
               int64_t (&span)[2]) {
  const auto values = file.attribute_or<std::vector<int64_t>>(group, name, {0, 0});
  if (values.size() == 2) std::copy(values.begin(), values.end(), span);
}

}  // namespace

std::string cell_group(const std::string& id) { return "/cells/" + id; }

void write_cell(h5::File& file, const CellResult& cell) {
  const std::string group = cell_group(cell.id);
  file.make_group(group);
  file.write_text(group + "/config", cell.config);
  file.set_attribute(group, "status", cell.status);
  file.set_attribute(group, "reason", cell.reason);
  file.set_attribute(group, "started", cell.started);
  file.set_attribute(group, "seconds", cell.seconds);
  file.set_attribute(group, "code_version", cell.code_version);
  file.set_attribute(group, "warnings", cell.warnings);
  file.set_attribute(group, "hist_key", std::vector<int64_t>(cell.hist_key, cell.hist_key + 2));
  file.set_attribute(group, "hist_value",
                     std::vector<int64_t>(cell.hist_value, cell.hist_value + 2));
  file.set_attribute(group, "tokens_total", cell.tokens_total);
  // The summary's numbers once more, so that it can be made anew from cells without their arrays.
  std::vector<std::string> names;
  std::vector<double> values;
  for (const auto& [name, value] : cell.scalars) {
    names.push_back(name);
    values.push_back(value);
  }
  file.set_attribute(group, "scalar_names", names);
  file.set_attribute(group, "scalars", values);
  write_arrays(file, group + "/metrics", cell.metrics);
  write_arrays(file, group + "/blocks", cell.blocks);
  write_arrays(file, group + "/samples", cell.samples);
  write_arrays(file, group + "/tokens", cell.tokens);
  write_arrays(file, group + "/rotation", cell.rotation);
  write_float_arrays(file, group + "/center", cell.center);
  write_arrays(file, group + "/learning", cell.learning);
  h5::seal(file, group);
}

CellResult read_cell(const h5::File& file, const std::string& id, Detail detail) {
  const std::string group = cell_group(id);
  CellResult cell;
  cell.id = id;
  cell.config = file.read_text(group + "/config");
  cell.status = file.attribute<std::string>(group, "status");
  cell.reason = file.attribute<std::string>(group, "reason");
  cell.started = file.attribute<std::string>(group, "started");
  cell.seconds = file.attribute<double>(group, "seconds");
  cell.code_version = file.attribute<std::string>(group, "code_version");
  cell.warnings = file.attribute<std::vector<std::string>>(group, "warnings");
  read_span(file, group, "hist_key", cell.hist_key);
  read_span(file, group, "hist_value", cell.hist_value);
  cell.tokens_total = file.attribute_or<int64_t>(group, "tokens_total", 0);
  const auto names = file.attribute<std::vector<std::string>>(group, "scalar_names");
  const auto values = file.attribute<std::vector<double>>(group, "scalars");
  for (size_t i = 0; i < std::min(names.size(), values.size()); ++i) {
    cell.scalars[names[i]] = values[i];
  }
  if (detail == Detail::light) return cell;
  cell.blocks = read_arrays(file, group + "/blocks");
  if (detail == Detail::blocks) return cell;
  cell.metrics = read_arrays(file, group + "/metrics");
  cell.samples = read_arrays(file, group + "/samples");
  cell.tokens = read_arrays(file, group + "/tokens");
  cell.rotation = read_arrays(file, group + "/rotation");
  cell.center = read_arrays(file, group + "/center");
  cell.learning = read_arrays(file, group + "/learning");
  return cell;
}

}  // namespace kvlab::store
