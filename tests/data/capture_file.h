#pragma once

#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/h5.h"
#include "data/capture_info.h"

namespace kvlab::data {

/// A folder of its own that goes with the test.
class TestFolder {
 public:
  TestFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "kvlab_data_XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~TestFolder() { std::filesystem::remove_all(path_); }
  TestFolder(const TestFolder&) = delete;
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

/// What a test capture holds: B = 1, Hq = 4, Hkv = 2, d = 8 unless changed. Element i of a tensor
/// is fill(i).
struct TestCapture {
  int64_t batch = 1, q_heads = 4, kv_heads = 2, tokens = 12, head_dim = 8, hidden = 6;
  std::vector<int32_t> positions = {7, 9, 11};
  std::vector<int64_t> layers = {0, 10};
  std::string schema = "kvlab.capture/1";
  std::string rope = "post";
  DType dtype = DType::fp32;
  bool with_w_o = true;

  static float fill(int64_t i) { return static_cast<float>(i % 251) / 8.0f - 9.0f; }

  /// Everything but the layers.
  void write_root(h5::File& file) const {
    file.set_attribute("/", "schema", schema);
    file.set_attribute("/", "model", "a test");
    file.set_attribute("/", "n_q_heads", q_heads);
    file.set_attribute("/", "n_kv_heads", kv_heads);
    file.set_attribute("/", "head_dim", head_dim);
    file.set_attribute("/", "rope", rope);
    std::vector<int32_t> ids(static_cast<size_t>(batch * tokens));
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(100 + i);
    file.write("/tokens", ids.data(), {batch, tokens});
    file.write("/positions", positions);
  }

  void write_layer(h5::File& file, int64_t layer) const {
    const std::string group = "/" + layer_group(layer);
    file.make_group(group);
    file.set_attribute(group, "layer", layer);
    const auto count = static_cast<int64_t>(positions.size());
    write_tensor(file, group + "/q", {batch, q_heads, count, head_dim}, dtype);
    write_tensor(file, group + "/k", {batch, kv_heads, tokens, head_dim}, dtype);
    write_tensor(file, group + "/v", {batch, kv_heads, tokens, head_dim}, dtype);
    if (with_w_o) write_tensor(file, group + "/w_o", {hidden, q_heads * head_dim}, dtype);
  }

  void write(const std::filesystem::path& path) const {
    h5::File file = h5::File::create(path);
    write_root(file);
    for (const int64_t layer : layers) write_layer(file, layer);
    file.close();
  }

  static void write_tensor(h5::File& file, const std::string& name,
                           const std::vector<int64_t>& shape, DType type);
};

/// Numbers of fill() that fp16 and bf16 hold exactly, as their bits.
std::vector<uint16_t> half_bits(int64_t count);
std::vector<uint16_t> bfloat_bits(int64_t count);

}  // namespace kvlab::data
