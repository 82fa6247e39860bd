#include <filesystem>
#include <fstream>
#include <functional>

#include "base/error.h"
#include "catch.h"
#include "data/capture_file.h"
#include "data/capture_info.h"

using namespace kvlab;
using namespace kvlab::data;
namespace fs = std::filesystem;

namespace {

const TestFolder& folder() {
  static const TestFolder kept;
  return kept;
}

/// The message of describe_capture, without the path in front.
std::string complaint(const fs::path& path) {
  try {
    describe_capture(path);
  } catch (const Error& error) {
    const std::string text = error.what();
    const std::string start = path.string() + ": ";
    return text.starts_with(start) ? text.substr(start.size()) : "no path: " + text;
  }
  return "no error";
}

std::string complaint(const TestCapture& capture) {
  const fs::path path = folder() / "wrong.h5";
  capture.write(path);
  return complaint(path);
}

/// The message for a file that `write` makes.
std::string complaint_of(const std::function<void(h5::File&)>& write) {
  const fs::path path = folder() / "wrong.h5";
  {
    h5::File file = h5::File::create(path);
    write(file);
    file.close();
  }
  return complaint(path);
}

/// The message for a capture whose layer 0 lacks `name`, which `write` may replace.
std::string complaint_about(const std::string& name,
                            const std::function<void(h5::File&, const std::string&)>& write) {
  return complaint_of([&](h5::File& file) {
    TestCapture().write_root(file);
    const std::vector<std::pair<std::string, std::vector<int64_t>>> tensors = {
        {"q", {1, 4, 3, 8}}, {"k", {1, 2, 12, 8}}, {"v", {1, 2, 12, 8}}, {"w_o", {6, 32}}};
    for (const auto& [tensor, shape] : tensors) {
      const std::string path = "/layer_000/" + tensor;
      if (tensor == name) {
        write(file, path);
      } else {
        TestCapture::write_tensor(file, path, shape, DType::fp32);
      }
    }
  });
}

std::string with_shape(const std::string& name, const std::vector<int64_t>& shape) {
  return complaint_about(name, [&](h5::File& file, const std::string& path) {
    TestCapture::write_tensor(file, path, shape, DType::fp32);
  });
}

}  // namespace

TEST_CASE("data: files that are no capture are refused", "[data]") {
  CHECK(complaint(folder() / "none.h5") == "no such file");
  const fs::path text = folder() / "text.h5";
  std::ofstream(text) << "not a capture at all";
  CHECK(complaint(text) == "not an HDF5 file");
  CHECK(complaint_of([](h5::File& file) { file.make_group("/x"); }) ==
        "/ has no attribute 'schema', expected 'kvlab.capture/1': not a capture");
  CHECK(complaint(TestCapture{.schema = "kvlab.capture/2"}) ==
        "/ has schema 'kvlab.capture/2', this program reads version 'kvlab.capture/1' only");
  CHECK(complaint(TestCapture{.schema = "kvlab.rotation/1"}) ==
        "/ has schema 'kvlab.rotation/1', expected 'kvlab.capture/1'");
}

TEST_CASE("data: a truncated capture is refused", "[data]") {
  const fs::path path = folder() / "short.h5";
  TestCapture{.tokens = 4096, .layers = {0}}.write(path);
  REQUIRE(complaint(path) == "no error");
  fs::resize_file(path, fs::file_size(path) * 2 / 3);
  CHECK_THAT(complaint(path), ContainsSubstring("truncated"));
}

TEST_CASE("data: wrong attributes of a capture are named", "[data]") {
  CHECK(complaint(TestCapture{.rope = "pre"}) ==
        "/ has rope = 'pre', expected 'post': q and k must be stored after RoPE");
  CHECK(complaint(TestCapture{.q_heads = 5}) ==
        "/ has n_q_heads = 5, expected a multiple of n_kv_heads = 2");
  CHECK(complaint_of([](h5::File& file) {
          file.set_attribute("/", "schema", "kvlab.capture/1");
        }) == "/ has no attribute 'n_q_heads', expected a positive integer");
  CHECK(complaint_of([](h5::File& file) {
          TestCapture().write_root(file);
          file.set_attribute("/", "head_dim", int64_t{0});
        }) == "/ has head_dim = 0, expected a positive integer");
  CHECK_THAT(complaint_of([](h5::File& file) {
               TestCapture().write_root(file);
               file.set_attribute("/", "head_dim", "eight");
             }),
             ContainsSubstring("head_dim") && ContainsSubstring("integer"));
  CHECK(complaint_of([](h5::File& file) {
          TestCapture().write_root(file);
          TestCapture().write_layer(file, 0);
          file.set_attribute("/layer_000", "layer", int64_t{3});
        }) == "/layer_000 has attribute layer = 3, expected 0");
}

TEST_CASE("data: wrong tokens and positions of a capture are named", "[data]") {
  CHECK(complaint(TestCapture{.positions = {3, 9, 9}}) ==
        "/positions has 9 after 9 at index 2, expected ascending positions");
  CHECK(complaint(TestCapture{.positions = {3, 12}}) ==
        "/positions has 12 at index 1, expected 0 to 11 (T − 1 of /tokens)");
  CHECK(complaint(TestCapture{.positions = {-1, 2}}) ==
        "/positions has -1 at index 0, expected 0 to 11 (T − 1 of /tokens)");
  CHECK(complaint(TestCapture{.positions = {}}) ==
        "/positions has shape [0], expected at least one entry");
  const auto with_tokens = [](const std::function<void(h5::File&)>& write) {
    return complaint_of([&](h5::File& file) {
      file.set_attribute("/", "schema", "kvlab.capture/1");
      file.set_attribute("/", "rope", "post");
      for (const char* name : {"n_q_heads", "n_kv_heads", "head_dim"}) {
        file.set_attribute("/", name, int64_t{8});
      }
      write(file);
    });
  };
  CHECK(with_tokens([](h5::File&) {}) == "/tokens is missing, expected int32 [B, T]");
  CHECK(with_tokens([](h5::File& file) { file.write("/tokens", std::vector<int32_t>{1, 2}); }) ==
        "/tokens has 1 dimension, expected 2: [B, T]");
  CHECK(with_tokens([](h5::File& file) { file.write("/tokens", std::vector<float>{1, 2}); }) ==
        "/tokens holds float32, expected int32 [B, T]");
}

TEST_CASE("data: a capture without layers, or with a misnamed one, is refused", "[data]") {
  CHECK(complaint(TestCapture{.layers = {}}) ==
        "/ holds no layer, expected groups named layer_NNN");
  CHECK(complaint_of([](h5::File& file) {
          TestCapture().write_root(file);
          file.make_group("/layer_7");
        }) == "/layer_7 is not a layer, expected a group named layer_NNN");
}

TEST_CASE("data: wrong shapes of a capture's tensors are named", "[data]") {
  CHECK(complaint_about("v", [](h5::File&, const std::string&) {}) ==
        "/layer_000/v is missing, expected [B, Hkv, T, d]");
  CHECK(complaint_about("w_o", [](h5::File&, const std::string&) {}) == "no error");
  CHECK(with_shape("k", {2, 12, 8}) ==
        "/layer_000/k has 3 dimensions, expected 4: [B, Hkv, T, d] = [1, 2, 12, 8]");
  CHECK(with_shape("k", {1, 2, 11, 8}) ==
        "/layer_000/k has shape [1, 2, 11, 8], expected [B, Hkv, T, d] = [1, 2, 12, 8], as the "
        "attributes, /tokens and /positions say");
  CHECK(with_shape("q", {1, 4, 2, 8}) ==
        "/layer_000/q has shape [1, 4, 2, 8], expected [B, Hq, P, d] = [1, 4, 3, 8], as the "
        "attributes, /tokens and /positions say");
  CHECK(with_shape("w_o", {6, 31}) ==
        "/layer_000/w_o has shape [6, 31], expected [D, Hq·d] with Hq·d = 32");
  CHECK(with_shape("w_o", {32}) == "/layer_000/w_o has 1 dimension, expected 2: [D, Hq·d]");
}

TEST_CASE("data: wrong types of a capture's tensors are named", "[data]") {
  const std::vector<int64_t> shape = {1, 2, 12, 8};
  CHECK(complaint_about("v", [&](h5::File& file, const std::string& path) {
          TestCapture::write_tensor(file, path, shape, DType::bf16);
        }) == "/layer_000/v holds bf16, expected fp32 as /layer_000/k");
  CHECK(complaint_about("k", [&](h5::File& file, const std::string& path) {
          file.write(path, bfloat_bits(192).data(), shape);
        }) == "/layer_000/k holds uint16 without the attribute dtype, expected dtype = 'bfloat16'");
  CHECK(complaint_about("k", [&](h5::File& file, const std::string& path) {
          file.write(path, bfloat_bits(192).data(), shape);
          file.set_attribute(path, "dtype", "float8");
        }) == "/layer_000/k has dtype = 'float8', expected 'bfloat16' on uint16");
  CHECK(complaint_about("k",
                        [&](h5::File& file, const std::string& path) {
                          file.write(path, std::vector<double>(192).data(), shape);
                        }) ==
        "/layer_000/k holds float64, expected float32, float16, or uint16 with dtype = 'bfloat16'");
}
