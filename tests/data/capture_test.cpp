#include "data/capture.h"

#include <ATen/ATen.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>

#include "base/error.h"
#include "base/hash.h"
#include "catch.h"
#include "data/capture_file.h"
#include "data/capture_rows.h"

using namespace kvlab;
using namespace kvlab::data;
namespace fs = std::filesystem;

namespace {

/// fill() as a tensor of this shape.
at::Tensor filled(const std::vector<int64_t>& shape) {
  at::Tensor tensor = at::empty(shape, at::kFloat);
  float* out = tensor.mutable_data_ptr<float>();
  for (int64_t i = 0; i < tensor.numel(); ++i) out[i] = TestCapture::fill(i);
  return tensor;
}

const ProbeChoice kAll = {"all", 0};

}  // namespace

TEST_CASE("data: a capture comes back as written, in each type", "[data]") {
  const TestFolder folder;
  const fs::path path = folder / "kv.h5";
  const std::vector<std::pair<DType, at::ScalarType>> types = {
      {DType::fp32, at::kFloat}, {DType::fp16, at::kHalf}, {DType::bf16, at::kBFloat16}};
  for (const auto& [type, scalar] : types) {
    CAPTURE(name_of(type));
    TestCapture{.batch = 2, .dtype = type}.write(path);
    std::vector<std::string> warnings;
    const Sample sample = load_capture(path, 10, {"last", 1}, false, &warnings);
    CHECK(warnings.empty());
    CHECK(sample.layer == 10);
    CHECK(sample.dtype == type);
    CHECK(sample.k.scalar_type() == scalar);
    CHECK(sample.k.equal(filled({2, 2, 12, 8}).to(scalar)));
    CHECK(sample.v.equal(filled({2, 2, 12, 8}).to(scalar)));
    CHECK(sample.q.equal(filled({2, 4, 3, 8}).narrow(2, 2, 1).to(scalar)));
    CHECK(sample.positions.equal(at::tensor({11}, at::kLong)));
    CHECK(sample.w_o.equal(filled({6, 32}).to(scalar).to(at::kFloat)));
  }
}

TEST_CASE("data: every pattern of 16 bits comes back unchanged", "[data]") {
  const TestFolder folder;
  const fs::path path = folder / "kv.h5";
  for (const DType type : {DType::fp16, DType::bf16}) {
    const TestCapture capture = {
        .kv_heads = 1, .tokens = 8192, .positions = {8191}, .layers = {0}, .dtype = type};
    std::vector<uint16_t> bits(65536);
    for (size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<uint16_t>(i);
    {
      h5::File file = h5::File::create(path);
      capture.write_root(file);
      TestCapture::write_tensor(file, "/layer_000/q", {1, 4, 1, 8}, type);
      TestCapture::write_tensor(file, "/layer_000/v", {1, 1, 8192, 8}, type);
      const std::vector<int64_t> shape = {1, 1, 8192, 8};
      if (type == DType::fp16) {
        file.write_float16("/layer_000/k", bits.data(), shape);
      } else {
        file.write("/layer_000/k", bits.data(), shape);
        file.set_attribute("/layer_000/k", "dtype", "bfloat16");
      }
      file.close();
    }
    std::vector<std::string> warnings;
    const Sample sample = load_capture(path, 0, {"last", 1}, true, &warnings);
    CHECK(std::memcmp(sample.k.const_data_ptr(), bits.data(), 2 * bits.size()) == 0);
    REQUIRE(warnings.size() == 1);
    // One exponent is NaN or Inf, with both signs.
    const int count = type == DType::fp16 ? 2 * 1024 : 2 * 128;
    CHECK_THAT(warnings[0],
               ContainsSubstring("holds " + std::to_string(count) + " values that are NaN or Inf"));
  }
}

TEST_CASE("data: a capture describes itself", "[data]") {
  const TestFolder folder;
  const fs::path path = folder / "kv.h5";
  TestCapture{.dtype = DType::bf16}.write(path);
  const CaptureInfo info = describe_capture(path);
  CHECK(info.batch == 1);
  CHECK(info.q_heads == 4);
  CHECK(info.kv_heads == 2);
  CHECK(info.tokens == 12);
  CHECK(info.head_dim == 8);
  CHECK(info.probes == 3);
  CHECK(info.positions == std::vector<int64_t>{7, 9, 11});
  CHECK(info.dtype == DType::bf16);
  CHECK(info.has_w_o);
  CHECK_FALSE(info.uses_seed);
  CHECK(info.layers == std::vector<int64_t>{0, 10});
  CHECK(info.model == "a test");
  CHECK(info.token_ids.size() == 12);
  CHECK(info.token_ids[3] == 103);
  CHECK(info.content == sha256_file(path));

  TestCapture{.layers = {3}, .with_w_o = false}.write(path);
  const CaptureInfo other = describe_capture(path);
  CHECK_FALSE(other.has_w_o);
  CHECK(other.content == sha256_file(path));
  CHECK(other.content != info.content);
  std::vector<std::string> warnings;
  CHECK_FALSE(load_capture(path, 3, kAll, false, &warnings).w_o.defined());
}

TEST_CASE("data: a stretch of a capture is a capture of its own", "[data]") {
  const TestFolder folder;
  const fs::path path = folder / "kv.h5";
  TestCapture{.positions = {2, 5, 8, 9, 11}}.write(path);
  const Stretch stretch{.first = 4, .count = 6};
  const CaptureInfo info = describe_capture(path, stretch);
  CHECK(info.tokens == 6);
  CHECK(info.positions == std::vector<int64_t>{1, 4, 5});
  CHECK(info.probes == 3);
  CHECK(info.token_ids == std::vector<int32_t>{104, 105, 106, 107, 108, 109});
  CHECK(info.content == sha256_file(path));

  std::vector<std::string> warnings;
  const Sample sample = load_capture(path, 0, {"last", 2}, false, &warnings, stretch);
  CHECK(warnings.empty());
  CHECK(sample.k.equal(filled({1, 2, 12, 8}).narrow(2, 4, 6)));
  CHECK(sample.v.equal(filled({1, 2, 12, 8}).narrow(2, 4, 6)));
  CHECK(sample.positions.equal(at::tensor({4, 5}, at::kLong)));
  CHECK(sample.q.equal(filled({1, 4, 5, 8}).narrow(2, 2, 2)));
  CHECK_FALSE(sample.more.k_pre);  // RoPE counts from the file's first token
  CHECK(load_capture(path, 0, {"last", 1}, false, &warnings, {.first = 0, .count = 6}).more.k_pre);

  CHECK(describe_capture(path, {.first = 9, .count = 0}).tokens == 3);
  CHECK_THROWS_WITH(
      describe_capture(path, {.first = 8, .count = 6}),
      path.string() + ": /tokens holds 12 tokens, but those from 8 to 13 were asked for");
}

TEST_CASE("data: asked probes are picked; one that is missing means all, with a warning",
          "[data]") {
  const TestFolder folder;
  const fs::path path = folder / "kv.h5";
  TestCapture{.positions = {5, 8, 9, 10, 11}}.write(path);
  std::vector<std::string> warnings;
  const at::Tensor stored = filled({1, 4, 5, 8});
  const Sample picked = load_capture(path, 0, {"strided", 2}, false, &warnings);
  CHECK(picked.positions.equal(at::tensor({8, 11}, at::kLong)));
  CHECK(picked.q.equal(stored.index_select(2, at::tensor({1, 4}, at::kLong))));
  CHECK(warnings.empty());

  const Sample whole = load_capture(path, 0, {"last", 5}, false, &warnings);
  CHECK(whole.positions.equal(at::tensor({5, 8, 9, 10, 11}, at::kLong)));
  CHECK(whole.q.equal(stored));
  REQUIRE(warnings.size() == 1);
  CHECK(warnings[0] == path.string() +
                           ": /positions lacks some of the 5 last probes asked for, so all 5 "
                           "stored ones are used");
}

TEST_CASE("data: slices of any size give the same rows", "[data]") {
  const TestFolder folder;
  const fs::path path = folder / "kv.h5";
  TestCapture{.batch = 2}.write(path);
  const h5::File file = h5::File::open(path);
  const at::Tensor whole = filled({2, 2, 12, 8});
  const std::vector<int64_t> rows = {0, 4, 5, 11};
  const at::Tensor some = whole.index_select(2, at::tensor(rows, at::kLong)).contiguous();
  for (const int64_t slice : {1, 32, 96, 5 * 32, 1 << 20}) {
    CAPTURE(slice);
    at::Tensor all = at::empty_like(whole);
    read_rows(file, "/layer_000/k", DType::fp32, {}, all.mutable_data_ptr(), slice);
    CHECK(all.equal(whole));
    at::Tensor picked = at::empty_like(some);
    read_rows(file, "/layer_000/k", DType::fp32, rows, picked.mutable_data_ptr(), slice);
    CHECK(picked.equal(some));
  }
}

TEST_CASE("data: NaN and Inf are counted and placed, refused unless allowed", "[data]") {
  const TestFolder folder;
  const fs::path path = folder / "kv.h5";
  const TestCapture capture = {.layers = {0}};
  const float inf = std::numeric_limits<float>::infinity();
  std::vector<float> v(2 * 12 * 8, 1.0f);
  v[1 * 96 + 3 * 8 + 5] = std::nanf("");
  v[1 * 96 + 3 * 8 + 6] = -inf;
  v[1 * 96 + 9 * 8] = inf;
  std::vector<float> w_o(6 * 32, 0.5f);
  w_o[2 * 32 + 7] = inf;
  {
    h5::File file = h5::File::create(path);
    capture.write_root(file);
    TestCapture::write_tensor(file, "/layer_000/q", {1, 4, 3, 8}, DType::fp32);
    TestCapture::write_tensor(file, "/layer_000/k", {1, 2, 12, 8}, DType::fp32);
    file.write("/layer_000/v", v.data(), {1, 2, 12, 8});
    file.write("/layer_000/w_o", w_o.data(), {6, 32});
    file.close();
  }
  const std::string v_text =
      path.string() +
      ": /layer_000/v holds 3 values that are NaN or Inf, the first at [0, 1, 3, 5]";
  std::vector<std::string> warnings;
  CHECK_THROWS_WITH(
      load_capture(path, 0, kAll, false, &warnings),
      v_text + ", expected finite values; allow_nonfinite: true uses them as they are");
  warnings.clear();
  const Sample sample = load_capture(path, 0, {"last", 1}, true, &warnings);
  CHECK(at::isnan(sample.v[0][1][3][5]).item<bool>());
  REQUIRE(warnings.size() == 2);
  CHECK(warnings[0] == v_text);
  CHECK(warnings[1] ==
        path.string() + ": /layer_000/w_o holds 1 value that is NaN or Inf, the first at [2, 7]");
}

TEST_CASE("data: a layer with a sliding window shorter than the text is a warning", "[data]") {
  const TestFolder folder;
  const fs::path path = folder / "kv.h5";
  for (const int64_t window : {4, 12}) {
    {
      h5::File file = h5::File::create(path);
      TestCapture().write_root(file);
      TestCapture().write_layer(file, 0);
      file.set_attribute("/layer_000", "sliding_window", window);
      file.close();
    }
    std::vector<std::string> warnings;
    load_capture(path, 0, {"last", 1}, false, &warnings);
    REQUIRE(warnings.size() == (window < 12 ? 1 : 0));
    if (window < 12) {
      CHECK(warnings[0] ==
            path.string() + ": in the model /layer_000 reads the last 4 tokens only, here all 12");
    }
  }
}

TEST_CASE("data: a layer that a capture lacks is refused", "[data]") {
  const TestFolder folder;
  const fs::path path = folder / "kv.h5";
  TestCapture().write(path);
  std::vector<std::string> warnings;
  CHECK_THROWS_WITH(load_capture(path, 7, kAll, false, &warnings),
                    path.string() + ": holds no layer 7, expected one of 0, 10");
}
