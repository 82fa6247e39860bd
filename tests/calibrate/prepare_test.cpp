#include "calibrate/prepare.h"

#include <unistd.h>

#include <atomic>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/error.h"
#include "calibrate/covariance.h"
#include "catch.h"
#include "metrics/cases.h"

using namespace kvlab;
using calibrate::CalibrationStore;
using calibrate::Prepared;
using calibrate::RotationLayer;
using cases::recipe;

namespace {

namespace fs = std::filesystem;

fs::path new_folder() {
  static int count = 0;
  const fs::path path = fs::temp_directory_path() / ("kvlab_prepare_" + std::to_string(::getpid()) +
                                                     "_" + std::to_string(count++));
  fs::create_directories(path);
  return path;
}

struct Folder {
  fs::path path = new_folder();
  ~Folder() { fs::remove_all(path); }
};

/// Two KV heads of 32 channels.
data::Sample calibration() { return cases::gaussian_sample({2, 2, 4, 64, 32}, 1100); }

Prepared prepared(const method::Recipe& recipe, const data::Sample* sample = nullptr,
                  int64_t seed = 0, int64_t kv_heads = 2, int64_t head_dim = 32,
                  int64_t layer = 0) {
  CalibrationStore store{fs::path()};
  std::optional<calibrate::CalibrationSample> given;
  if (sample != nullptr) given = cases::calibration_of(*sample);
  return calibrate::prepare(recipe, kv_heads, head_dim, layer, seed, given, store, {});
}

calibrate::RotationFile file_of(int64_t layer, int64_t heads, int64_t d) {
  calibrate::RotationFile file;
  std::vector<at::Tensor> matrices;
  for (int64_t h = 0; h < heads; ++h) matrices.push_back(transform::random_orthogonal(d, 50 + h));
  file.layers[layer].key.rotation = at::stack(matrices);
  return file;
}

RotationLayer layer_of(double number) {
  RotationLayer layer;
  layer.key.center = at::full({1, 4}, number, at::kFloat);
  return layer;
}

}  // namespace

TEST_CASE("a centre is the mean over all calibration tokens, per KV head in fp32", "[prepare]") {
  const data::Sample sample = calibration();
  const Prepared made = prepared(recipe("quarot_windows_centered"), &sample);
  const at::Tensor center = made.key.transform.center();
  REQUIRE(center.sizes() == at::IntArrayRef({2, 32}));
  CHECK(center.scalar_type() == at::kFloat);
  CHECK_FALSE(made.value.transform.center().defined());
  double sum = 0;
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t t = 0; t < 64; ++t) sum += sample.k[b][1][t][7].item<double>();
  }
  CHECK(center[1][7].item<double>() == Approx(sum / 128).epsilon(1e-6));
}

TEST_CASE("D44 one covariance rotation a layer averages the heads, or each has its own",
          "[prepare]") {
  const data::Sample sample = calibration();
  const at::Tensor covariance = calibrate::query_covariance(sample);
  const Prepared layer = prepared(recipe("oscar_cov"), &sample);
  const Prepared head = prepared(recipe("oscar_cov", {{"key.covariance_scope", "head"}}), &sample);
  CHECK(at::allclose(layer.key.stored_rotation,
                     calibrate::covariance_rotation(covariance.mean(0, true), "uhp"), 0, 1e-12));
  CHECK(at::allclose(head.key.stored_rotation, calibrate::covariance_rotation(covariance, "uhp"), 0,
                     1e-12));
  CHECK(layer.key.stored_rotation.size(0) == 1);
  CHECK(head.key.stored_rotation.size(0) == 2);
  // Values have a covariance of their own, in two forms.
  const Prepared exact = prepared(recipe("oscar_cov_exact"), &sample);
  const auto rotation_of = [](const at::Tensor& values) {
    return calibrate::covariance_rotation(values.mean(0, true), "uhp");
  };
  const at::Tensor proxy = calibrate::proxy_covariance(sample, covariance);
  CHECK(at::allclose(layer.value.stored_rotation, rotation_of(proxy), 0, 1e-12));
  CHECK(at::allclose(exact.value.stored_rotation, rotation_of(calibrate::output_covariance(sample)),
                     0, 1e-12));
  CHECK(at::equal(exact.key.stored_rotation, layer.key.stored_rotation));
}

TEST_CASE("D44 heads that want different rotations lose by sharing one", "[prepare]") {
  // Head 0: variance 1 on e1 … e8 and 0.01 elsewhere; head 1 the same spectrum in a random basis.
  data::Sample sample = cases::gaussian_sample({1, 2, 2, 4096, 128}, 1110, {4095});
  at::Tensor deviation = at::full({128}, 0.1, at::kFloat);
  deviation.narrow(0, 0, 8).fill_(1.0);
  const at::Tensor basis = transform::random_orthogonal(128, 77).to(at::kFloat);
  sample.k.mul_(deviation);
  sample.k[0][1].copy_(sample.k[0][1].matmul(basis));
  data::Sample covariances = sample;
  covariances.q = sample.k;  // queries with the keys' covariance
  covariances.positions = at::arange(4096, at::kLong);
  const auto mse = [&](const char* scope) {
    const method::Recipe method = recipe("int2_naive", {{"key.rotate", "covariance_hadamard"},
                                                        {"key.covariance_scope", scope},
                                                        {"key.codec.params", "fp32"}});
    return cases::scalar(cases::run(sample, method, {"error"}, &covariances), "k_mse");
  };
  const double share = mse("layer") / mse("head");
  CHECK(share >= 1.1);
  CHECK(share == Approx(1.14).epsilon(0.03));
}

TEST_CASE("calibrated thresholds are order statistics of what enters the codec", "[prepare]") {
  const data::Sample sample = calibration();
  const method::Recipe method =
      recipe("quarot_windows_centered",
             {{"key.codec.clip_source", "calibrated"}, {"key.token_scale", "l2_head"}});
  const Prepared made = prepared(method, &sample);
  REQUIRE(made.key.shared.sizes() == at::IntArrayRef({2}));
  CHECK_FALSE(made.value.shared.defined());
  for (int64_t head = 0; head < 2; ++head) {
    std::vector<float> all;
    for (int64_t b = 0; b < 2; ++b) {
      const at::Tensor centred =
          sample.k[b][head].to(at::kDouble) - made.key.transform.center()[head];
      const at::Tensor y = centred.matmul(transform::hadamard(32));
      const at::Tensor entering =
          (y / y.norm(2, -1, true).to(at::kFloat).to(at::kDouble)).to(at::kFloat);
      for (int64_t t = 0; t < 64; ++t) {
        for (int64_t c = 0; c < 32; ++c) all.push_back(std::fabs(entering[t][c].item<float>()));
      }
    }
    std::sort(all.begin(), all.end());
    // 4,096 values, ratio 0.96: index 3,932.
    CHECK(made.key.shared[head].item<float>() == Approx(all[3932]).epsilon(1e-6));
  }
}

TEST_CASE("what needs a calibration set says so when there is none", "[prepare]") {
  for (const char* id :
       {"quarot_windows_centered", "oscar_cov", "oscar_cov_exact", "optr", "oscar_optr"}) {
    CAPTURE(id);
    CHECK(method::needs_calibration(recipe(id)));
    CHECK_THROWS_WITH(prepared(recipe(id)), ContainsSubstring("needs a calibration set"));
  }
  CHECK_THROWS_WITH(prepared(recipe("quarot_windows", {{"key.codec.clip_source", "calibrated"}})),
                    ContainsSubstring("calibrated needs a calibration set"));
  for (const char* id : {"bf16", "kivi", "oscar_ots", "quarot_windows"})
    CHECK_NOTHROW(prepared(recipe(id)));
}

TEST_CASE("D47 a calibration set of another shape is refused", "[prepare]") {
  const data::Sample sample = calibration();
  CHECK_THROWS_WITH(prepared(recipe("oscar_cov"), &sample, 0, 4, 32),
                    ContainsSubstring("2 KV heads of 32 channels") && ContainsSubstring("4 of 32"));
  CHECK_THROWS_WITH(prepared(recipe("oscar_cov"), &sample, 0, 2, 64), ContainsSubstring("2 of 64"));
}

TEST_CASE("random rotations follow the seed and differ between the sides", "[prepare]") {
  const method::Recipe method = recipe(
      "int2_naive", {{"key.rotate", "random_orthogonal"}, {"value.rotate", "random_orthogonal"}});
  CHECK(method::uses_seed(method));
  const Prepared first = prepared(method, nullptr, 3);
  CHECK(at::equal(first.key.stored_rotation, prepared(method, nullptr, 3).key.stored_rotation));
  CHECK_FALSE(at::allclose(first.key.stored_rotation, first.value.stored_rotation, 0.1, 0.1));
  for (const int64_t seed : {2, 4}) {
    const Prepared other = prepared(method, nullptr, seed);
    CHECK_FALSE(at::allclose(first.key.stored_rotation, other.key.stored_rotation, 0.1, 0.1));
    CHECK_FALSE(at::allclose(first.value.stored_rotation, other.value.stored_rotation, 0.1, 0.1));
    CHECK_FALSE(at::allclose(first.key.stored_rotation, other.value.stored_rotation, 0.1, 0.1));
  }
}

TEST_CASE("D43 the rotation of every preset is orthogonal to 1e-12", "[prepare]") {
  // As many tokens as a codebook of 256 entries wants.
  const data::Sample sample =
      cases::with_more(cases::gaussian_sample({1, 2, 4, 1100, 32}, 1120), 1122);
  const at::Tensor x = plain::gaussian({20, 32}, 1121).to(at::kDouble);
  for (const std::string& id : method::method_ids()) {
    CAPTURE(id);
    const Prepared made = prepared(recipe(id, {{"calibrate.tokens", 128},
                                               {"calibrate.steps", 3},
                                               {"calibrate.sink", 4},
                                               {"calibrate.recent", 16},
                                               {"calibrate.queries", 8}}),
                                   &sample);
    for (const calibrate::PreparedSide* side : {&made.key, &made.value}) {
      // What mixes heads or is no rotation has its own tests (transform/stages_test).
      if (side->transform.heads() > 1 || side->is_basis) continue;
      for (int64_t head = 0; head < 2; ++head) {
        const at::Tensor r = side->transform.rotation_of(head);
        if (!r.defined()) continue;
        CHECK((x.matmul(r).matmul(r.t()) - x).abs().max().item<double>() <= 1e-12);
        CHECK_FALSE(at::allclose(x.matmul(r), x, 1e-2, 1e-2));
      }
    }
    // What a preset names is what it gets.
    const std::string rotate = get_text(recipe(id).settings, "key.rotate");
    const bool basis = get_text(recipe(id).settings, "key.basis") != "none";
    CHECK(made.key.transform.rotation().defined() ==
          ((basis || rotate != "none") && !made.key.passthrough));
    const bool made_of_data = rotate != "none" && !rotate.starts_with("hadamard") &&
                              !rotate.starts_with("signed_hadamard");
    CHECK(made.key.stored_rotation.defined() == ((basis || made_of_data) && !made.key.passthrough));
  }
}

TEST_CASE("D47 a rotation from a file is used as it is, with its centre", "[prepare]") {
  const Folder folder;
  const std::string path = (folder.path / "r.h5").string();
  calibrate::RotationFile file = file_of(7, 2, 32);
  file.layers[7].key.center = plain::gaussian({2, 32}, 1130);
  calibrate::write_rotation_file(path, file);
  const method::Recipe method =
      recipe("int2_naive", {{"key.rotate", "file:" + path}, {"value.rotate", "none"}});
  const Prepared made = prepared(method, nullptr, 0, 2, 32, 7);
  CHECK(at::equal(made.key.stored_rotation, file.layers[7].key.rotation));
  CHECK(at::equal(made.key.transform.center(), file.layers[7].key.center));
  CHECK_FALSE(made.value.transform.rotation().defined());

  SECTION("another layer") {
    CHECK_THROWS_WITH(prepared(method, nullptr, 0, 2, 32, 8),
                      ContainsSubstring(path) && ContainsSubstring("no layer 8"));
  }
  SECTION("another head size") {
    CHECK_THROWS_WITH(prepared(method, nullptr, 0, 2, 64, 7),
                      ContainsSubstring("[2, 32, 32]") && ContainsSubstring("64 channels"));
  }
  SECTION("another number of heads") {
    CHECK_THROWS_WITH(prepared(method, nullptr, 0, 4, 32, 7), ContainsSubstring("4 KV heads"));
  }
  SECTION("a side that it does not hold") {
    const method::Recipe value = recipe("int2_naive", {{"value.rotate", "file:" + path}});
    CHECK_THROWS_WITH(prepared(value, nullptr, 0, 2, 32, 7),
                      ContainsSubstring("no value rotation for layer 7"));
  }
  SECTION("no file") {
    const method::Recipe absent =
        recipe("int2_naive", {{"key.rotate", "file:" + path + ".absent"}});
    CHECK_THROWS_AS(prepared(absent), Error);
  }
}

TEST_CASE("a centre of a file that does not fit is refused", "[prepare]") {
  const Folder folder;
  const std::string path = (folder.path / "r.h5").string();
  calibrate::RotationFile file = file_of(0, 1, 32);
  file.layers[0].key.center = plain::gaussian({1, 32}, 1131);  // one head's, the data has two
  calibrate::write_rotation_file(path, file);
  CHECK_THROWS_WITH(prepared(recipe("int2_naive", {{"key.rotate", "file:" + path}})),
                    ContainsSubstring(path) && ContainsSubstring("[1, 32]"));
}

TEST_CASE("a method that cannot serve a head size says so", "[prepare]") {
  CHECK_THROWS_AS(prepared(recipe("hadamard"), nullptr, 0, 2, 100), Unsupported);
}

TEST_CASE("a finished calibration is made once and kept in memory and on disk", "[prepare]") {
  const Folder folder;
  int made = 0;
  const auto make = [&](double number) {
    return [&made, number] {
      ++made;
      return layer_of(number);
    };
  };
  const std::string key(64, 'a'), other(64, 'b');
  {
    CalibrationStore store(folder.path);
    CHECK(store.get(key, 3, make(1))->key.center[0][0].item<float>() == 1.0f);
    CHECK(store.get(key, 3, make(2))->key.center[0][0].item<float>() == 1.0f);
    CHECK(made == 1);
    CHECK(store.get(other, 3, make(5))->key.center[0][0].item<float>() == 5.0f);
    CHECK(made == 2);
  }
  CalibrationStore again(folder.path);
  CHECK(again.get(key, 3, make(9))->key.center[0][0].item<float>() == 1.0f);
  CHECK(again.get(other, 3, make(9))->key.center[0][0].item<float>() == 5.0f);
  CHECK(made == 2);
  // A store without a folder keeps nothing on disk.
  CalibrationStore memory{fs::path()};
  CHECK(memory.get(key, 3, make(7))->key.center[0][0].item<float>() == 7.0f);
}

TEST_CASE("D47 a damaged or foreign file in the store is made anew, never guessed at",
          "[prepare]") {
  const Folder folder;
  const std::string key(64, 'a');
  CalibrationStore(folder.path).get(key, 3, [] { return layer_of(1); });
  fs::path file;
  for (const auto& entry : fs::directory_iterator(folder.path)) file = entry.path();
  SECTION("truncated") { fs::resize_file(file, fs::file_size(file) / 2); }
  SECTION("made from something else") {
    calibrate::RotationFile foreign;
    foreign.calibration = std::string(64, 'c');
    foreign.layers[3] = layer_of(4);
    calibrate::write_rotation_file(file, foreign);
  }
  SECTION("of another layer") {
    calibrate::RotationFile foreign;
    foreign.calibration = key;
    foreign.layers[4] = layer_of(4);
    calibrate::write_rotation_file(file, foreign);
  }
  const auto layer = CalibrationStore(folder.path).get(key, 3, [] { return layer_of(8); });
  CHECK(layer->key.center[0][0].item<float>() == 8.0f);
  // And it replaced what was there.
  CHECK(CalibrationStore(folder.path)
            .get(key, 3, [] { return layer_of(9); })
            ->key.center[0][0]
            .item<float>() == 8.0f);
}

TEST_CASE("threads that want the same calibration wait for one of them", "[prepare]") {
  CalibrationStore store{fs::path()};
  std::atomic<int> made = 0;
  std::atomic<int> right = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      const auto layer = store.get("key", 0, [&] {
        ++made;
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        return layer_of(1);
      });
      if (layer->key.center.defined()) ++right;
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(made == 1);
  CHECK(right == 8);
}

TEST_CASE("a calibration that fails is tried again by the next", "[prepare]") {
  CalibrationStore store{fs::path()};
  CHECK_THROWS_AS(store.get("key", 0, []() -> RotationLayer { throw Error("no"); }), Error);
  CHECK(store.get("key", 0, [] { return layer_of(2); })->key.center[0][0].item<float>() == 2.0f);
}

TEST_CASE("calibrations are told apart by content, layer, scope and form", "[prepare]") {
  // One store for all: what differs in any of these must not be served what was made for another.
  const Folder folder;
  const data::Sample first = calibration();
  const data::Sample second = cases::gaussian_sample({2, 2, 4, 64, 32}, 1140);
  CalibrationStore store(folder.path);
  const auto rotations = [&](const method::Recipe& recipe, const data::Sample& sample,
                             const char* content, int64_t layer) {
    const Prepared made = calibrate::prepare(recipe, 2, 32, layer, 0,
                                             cases::calibration_of(sample, content), store, {});
    return std::pair{made.key.stored_rotation, made.value.stored_rotation};
  };
  const method::Recipe method = recipe("oscar_cov");
  const auto base = rotations(method, first, "first", 0);
  CHECK(at::equal(rotations(method, first, "first", 0).first, base.first));
  CHECK_FALSE(at::equal(rotations(method, second, "second", 0).first, base.first));
  CHECK_FALSE(at::equal(rotations(method, second, "first", 1).first,
                        base.first));  // another layer's sample
  CHECK(rotations(recipe("oscar_cov", {{"key.covariance_scope", "head"}}), first, "first", 0)
            .first.size(0) == 2);
  CHECK_FALSE(
      at::equal(rotations(recipe("oscar_cov_exact"), first, "first", 0).second, base.second));
  CHECK_FALSE(at::equal(
      rotations(recipe("oscar_cov", {{"key.bit_reversal", false}}), first, "first", 0).first,
      base.first));
  CHECK_FALSE(at::equal(
      rotations(recipe("oscar_cov", {{"key.rotate", "covariance"}}), first, "first", 0).first,
      base.first));
  // A key rotation is none for values.
  CHECK_FALSE(at::allclose(base.first, base.second, 1e-2, 1e-2));
}

TEST_CASE("loss gradients of the calibration set weigh the signposts", "[prepare]") {
  const data::Sample bare = cases::with_more(calibration(), 1200);
  const method::Recipe method = recipe("kvquant_nuq2");
  const Prepared plain = prepared(method, &bare);
  REQUIRE(plain.notes.size() == 2);
  CHECK(plain.notes[0] == "key: k-means is unweighted, the calibration set has no grad_k");
  CHECK(plain.notes[1] == "value: k-means is unweighted, the calibration set has no grad_v");

  // Only positive values before RoPE count: signposts move up. The keys' gradients are those after
  // RoPE, so they are turned as the keys are.
  data::Sample weighted = bare;
  const at::Tensor wanted = bare.more.k_pre().gt(0).to(at::kFloat) * 10.0 + 0.01;
  const at::Tensor turned = bare.more.rope().turned(wanted);
  weighted.more.grad_k = [turned] { return turned; };
  const Prepared made = prepared(method, &weighted);
  REQUIRE(made.notes.size() == 1);
  CHECK(made.notes[0].starts_with("value: k-means is unweighted"));
  const auto signposts = [](const Prepared& of) { return of.key.shared[0].narrow(0, 64, 4); };
  CHECK(made.key.shared.narrow(1, 0, 64).equal(plain.key.shared.narrow(1, 0, 64)));
  CHECK(signposts(plain)[0].item<float>() < -0.5f);
  CHECK(signposts(made)[0].item<float>() > -0.1f);

  // Signs of gradients and their unit do not matter, gradients of zero weigh nothing.
  data::Sample flat = bare;
  flat.more.grad_k = [turned] { return turned * -std::exp2(90.0); };
  flat.more.grad_v = [&bare] { return at::zeros_like(bare.v); };
  const Prepared same = prepared(method, &flat);
  REQUIRE(same.notes.size() == 1);
  CHECK(same.notes[0] == "value: k-means is unweighted, grad_v of the calibration set is zero");
  CHECK(signposts(same).equal(signposts(made)));
  CHECK(at::allclose(same.value.shared, plain.value.shared, 0, 1e-6));
}

TEST_CASE("compositions of OSCAR's code, and covariances of the side itself", "[prepare]") {
  const data::Sample sample = calibration();
  const at::Tensor query = calibrate::query_covariance(sample).mean(0);
  const auto rotation = [&](const Settings& edits) {
    return prepared(recipe("oscar_cov", edits), &sample).key.stored_rotation[0];
  };
  const auto product = [&](const at::Tensor& covariance, const std::string& factors) {
    return calibrate::compose_rotation(calibrate::eigenvectors(covariance), factors);
  };
  const std::vector<std::pair<std::string, std::string>> all = {
      {"r_h_pbr", "uhp"}, {"r_h", "uh"},      {"plain", "u"},  {"br", "up"}, {"br_h128", "uph"},
      {"h_r_pbr", "hup"}, {"h_pbr_r", "hpu"}, {"h_pbr", "hp"}, {"pbr", "p"}};
  for (const auto& [name, factors] : all) {
    CAPTURE(name);
    CHECK(at::allclose(rotation({{"key.composition", name}}), product(query, factors), 0, 1e-12));
  }
  const at::Tensor rounded = rotation({{"key.rotation_params", "bf16"}});
  CHECK(rounded.equal(rotation({}).to(at::kBFloat16).to(at::kDouble)));
  CHECK(rotation({{"key.rotation_params", "fp32"}})
            .equal(rotation({}).to(at::kFloat).to(at::kDouble)));
  CHECK(rotation({{"key.composition", "r_h"}}).equal(rotation({{"key.bit_reversal", false}})));

  const at::Tensor own = calibrate::own_covariance(sample.k).mean(0);
  const at::Tensor rows = sample.k.transpose(0, 1).flatten(1, 2).to(at::kDouble);
  CHECK(at::allclose(own, rows.transpose(1, 2).matmul(rows).mean(0) / 128, 1e-12));
  CHECK(at::allclose(rotation({{"key.covariance", "own"}}), product(own, "uhp"), 0, 1e-12));
  const Prepared values = prepared(recipe("oscar_cov", {{"value.covariance", "own"}}), &sample);
  const at::Tensor own_v = calibrate::own_covariance(sample.v).mean(0);
  CHECK(at::allclose(values.value.stored_rotation[0], product(own_v, "uhp"), 0, 1e-12));
}
