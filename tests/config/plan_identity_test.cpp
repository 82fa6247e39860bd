#include "base/h5.h"
#include "catch.h"
#include "config/planning.h"

using namespace kvlab;
using nlohmann::json;

TEST_CASE_METHOD(Fixture, "a cell's id depends on what decides its result and on nothing else") {
  const auto id = [&](const std::string& text) { return this->plan(text).cells.at(0).id; };
  const std::string base = kCapture + "methods: [kivi]\n";
  const std::string first = id(base);
  CHECK(first.size() == 32);
  CHECK(first.find_first_not_of("0123456789abcdef") == std::string::npos);
  CHECK(id(base) == first);
  CHECK(id(base + "name: other\noutput: o.h5\n") == first);
  CHECK(id(base + "seeds: [5]\n") == first);
  CHECK(id(base + "measure: [memory, tni, attention, error]\n") == first);
  CHECK(id(kCapture + "methods: [{use: kivi, label: x, set: {key.covariance: paper}}]\n") == first);
  CHECK(id(base + "sweep: {grid: {group: [32]}}\n") == first);
  CHECK(id(base + "measure: [error]\n") != first);
  CHECK(id(base + "probes: {count: 8}\n") != first);
  CHECK(id(kCapture + "methods: [{use: kivi, set: {key.codec.bits: 3}}]\n") != first);
  // Calibration counts where it is used.
  data.capture("cal.h5").content = "another";
  CHECK(id(base) == first);
  const std::string calibrated = id(kCapture + "methods: [oscar_cov]\n");
  data.capture("cal.h5").content = "a third";
  CHECK(id(kCapture + "methods: [oscar_cov]\n") != calibrated);
  data.capture("eval.h5").content = "another";
  CHECK(id(base) != first);
  CHECK(id(kSynthetic + "methods: [kivi]\nseeds: [1]\n") !=
        id(kSynthetic + "methods: [kivi]\nseeds: [2]\n"));
}

TEST_CASE_METHOD(Fixture, "D47: a rotation's content is part of the cell, its place is not") {
  const auto write = [&](const std::string& name, const std::string& method) {
    folder.write(name, "");  // its folder
    h5::File file = h5::File::create(folder.path() / name);
    file.set_attribute("/", "schema", std::string("kvlab.rotation/1"));
    file.set_attribute("/", "method", method);
    file.close();
  };
  write("r.h5", "one");
  write("copy/r.h5", "one");
  const auto id = [&](const std::string& path) {
    return this
        ->plan(kCapture + "methods: [{use: quarot, set: {key.rotate: 'file:" + path + "'}}]\n")
        .cells.at(0);
  };
  const config::Cell first = id("r.h5");
  CHECK(first.config.at("method").at("key").at("rotate") ==
        "file:" + (folder.path() / "r.h5").string());
  CHECK(first.config.at("method").at("key")["rotation_sha256"] ==
        sha256_file(folder.path() / "r.h5"));
  CHECK(id("copy/r.h5").id == first.id);
  write("r.h5", "two");
  CHECK(id("r.h5").id != first.id);

  // Learned from the evaluation set, it says so in the row.
  CHECK(id("r.h5").warnings.empty());
  h5::File file = h5::File::edit(folder.path() / "r.h5");
  file.set_attribute("/", "calibration", std::string_view(sha256("eval.h5")));
  file.close();
  CHECK(id("r.h5").warnings == std::vector<std::string>{(folder.path() / "r.h5").string() +
                                                        " was calibrated on the evaluation set"});

  folder.write("text.h5", "no rotation");
  const std::string method = "methods: [{use: quarot, set: {key.rotate: 'file:text.h5'}}]\n";
  CHECK(mistakes(kCapture + method) == std::vector<std::string>{"text.h5: not an HDF5 file"});
  CHECK(places(kCapture + method) == std::vector<std::string>{"4:11"});
}

TEST_CASE_METHOD(Fixture, "the stored configuration of a cell") {
  const config::Plan plan = this->plan(kCapture + R"(methods: [{use: optr, label: mine}]
sweep: {grid: {calibrate.steps: [40, 80]}}
)");
  const json& config = plan.cells[0].config;
  CHECK(config.at("dataset").at("source") == "capture");
  CHECK(config.at("dataset").at("path") == (folder.path() / "eval.h5").string());
  CHECK(config.at("dataset")["sha256"] == sha256("eval.h5"));
  CHECK(config.at("dataset").at("layer") == 10);
  CHECK(config.at("dataset").at("dtype") == "bf16");
  CHECK(config.at("method").at("id") == "optr");
  CHECK(config.at("method").at("label") == "mine");
  CHECK(config.at("method").at("key").at("learned_over") == "hadamard");
  CHECK(config.at("method").at("key").at("codec").at("group") == 64);
  CHECK(config.at("method").at("requested").at("key.codec.group") == 128);
  CHECK(config.at("method").at("window").at("recent") == 256);
  CHECK(config.at("method").at("calibrate").at("steps") == 40);
  CHECK(config.at("sweep") == json{{"calibrate.steps", 40}});
  CHECK(config.at("seed") == 0);
  CHECK(config.at("seed_used") == false);
  CHECK(config.at("backend") == "reference");
  CHECK(config.at("probes") == json{{"count", 64}, {"placement", "strided"}});
  CHECK(config.at("calibration").at("path") == (folder.path() / "cal.h5").string());
  CHECK(config.at("calibration")["sha256"] == sha256("cal.h5"));
  CHECK(this->plan(kCapture + "methods: [kivi]\n").cells[0].config.at("calibration").is_null());
  CHECK(plan.cells[0].calibration.at(0).layers == std::vector<int64_t>{10});
}

TEST_CASE_METHOD(Fixture, "D09: symmetric codes are recorded with the three levels they use") {
  const config::Plan plan = this->plan(kCapture + "methods: [int2_naive_symmetric, kivi, bf16]\n");
  CHECK(plan.cells[0].config.at("method").at("levels_used") == json{{"key", 3}, {"value", 3}});
  CHECK(plan.cells[1].config.at("method").at("levels_used") == json{{"key", 4}, {"value", 4}});
  CHECK(plan.cells[2].config.at("method").at("levels_used").at("key").is_null());
}
