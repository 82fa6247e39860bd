#include <filesystem>

#include "base/error.h"
#include "catch.h"
#include "config/experiment_file.h"

using namespace kvlab;
using Lines = std::vector<std::string>;

TEST_CASE("a small experiment and its defaults") {
  const ExperimentFolder folder;
  const config::Experiment experiment = folder.load(kSmall);
  CHECK(experiment.name == "e");
  CHECK(experiment.output == "results/e.h5");
  CHECK(experiment.backend == "reference");
  CHECK(experiment.measure == Lines{"error", "attention", "tni", "memory"});
  CHECK(experiment.seeds == std::vector<int64_t>{0});
  CHECK(experiment.probes.placement == "strided");
  CHECK(experiment.probes.count == 64);
  REQUIRE(experiment.datasets.size() == 1);
  CHECK(experiment.datasets[0].label == "gaussian");
  CHECK(experiment.datasets[0].params.at("tokens") == 256);
  CHECK(experiment.datasets[0].params.at("head_dim") == 128);
  CHECK(experiment.datasets[0].params.at("dtype") == "bf16");
  REQUIRE(experiment.methods.size() == 2);
  CHECK(experiment.methods[1].label == "kivi");
  CHECK(experiment.source_text == kSmall);
}

TEST_CASE("the contract's example") {
  const ExperimentFolder folder;
  folder.write("datasets/smollm2/kv.h5", "");
  folder.write("datasets/smollm2/calibration.h5", "");
  const config::Experiment experiment = folder.load(R"(schema: 1
name: window_sweep
description: the table it is for
dataset:
  - {source: synthetic, pattern: low_norm_sink, tokens: 4096, kv_heads: 8, q_heads: 32, head_dim: 128, dtype: bf16}
  - {source: capture, path: datasets/smollm2/kv.h5, layers: [0, 10, 20, 29]}
methods:
  - bf16
  - kivi
  - {use: oscar_ots, label: "rotation only", set: {key.token_scale: none}}
  - id: mine
    key: {codec: {bits: 4}}
    value: {codec: {clip: .96}}
    window: {recent: 64}
sweep:
  grid: {group: [32, 64, 128], window.recent: [0, 128, 256]}
exclude:
  - {when: {method: kivi, group: 128}, reason: "not in the published grid"}
measure: [error, attention, tni, memory]
probes: {count: 64, placement: strided}
seeds: [0, 1, 2]
calibration: {source: capture, path: datasets/smollm2/calibration.h5}
output: results/window_sweep.h5
)");
  CHECK(experiment.datasets[1].path == folder.path() / "datasets/smollm2/kv.h5");
  CHECK(experiment.datasets[1].label == "kv");
  CHECK(experiment.datasets[1].layers == std::vector<int64_t>{0, 10, 20, 29});
  REQUIRE(experiment.methods.size() == 4);
  CHECK(experiment.methods[2].label == "rotation only");
  CHECK(experiment.methods[2].recipe.settings.at("key.token_scale") == "none");
  CHECK(experiment.methods[2].recipe.settings.at("key.rotate") == "hadamard");
  CHECK(experiment.methods[3].recipe.settings.at("value.codec.bits") == 4);
  CHECK(experiment.methods[3].recipe.settings.at("value.codec.clip") == .96);
  REQUIRE(experiment.grid.size() == 2);
  CHECK(experiment.grid[0].key == "group");
  CHECK(experiment.grid[1].values == std::vector<nlohmann::json>{0, 128, 256});
  CHECK(experiment.excludes[0].reason == "not in the published grid");
  CHECK(experiment.seeds == std::vector<int64_t>{0, 1, 2});
  REQUIRE(experiment.calibration.size() == 1);
}

TEST_CASE("D83: unknown keys are refused with their line and the nearest valid key") {
  const ExperimentFolder folder;
  CHECK(folder.mistakes(R"(schema: 1
resid_length: 64
Methods: []
group: 32
dataset: {source: synthetic, patern: gaussian, heads: 3}
methods: [{use: kivi, set: {Group_size: 32, window.resid_length: 3}}]
)") == Lines{"e.yaml:2:1: unknown key 'resid_length' in the experiment (valid: schema, name, "
             "description, output, dataset, methods, seeds, sweep, exclude, backend, measure, "
             "probes, calibration, published, evaluation, cache_dtype, prefill, include)",
             "e.yaml:3:1: unknown key 'Methods' in the experiment (did you mean 'methods'?)",
             "e.yaml:4:1: unknown key 'group' in the experiment (it is a key of a method: see "
             "'methods' and 'sweep')",
             "e.yaml:5:30: unknown key 'patern' in the dataset (did you mean 'pattern'?)",
             "e.yaml:5:48: unknown key 'heads' in the dataset (did you mean 'q_heads'?)",
             "e.yaml:6:29: unknown key 'Group_size' of a method (did you mean 'group'?)",
             "e.yaml:6:45: unknown key 'window.resid_length' of a method (did you mean "
             "'window.recent'?)"});
}

TEST_CASE("wrong types and ranges are reported all at once with their places") {
  const ExperimentFolder folder;
  CHECK(folder.mistakes(R"(schema: 2
name: 7
dataset:
  - {source: synthetic, pattern: gausian, tokens: many, kv_heads: 8, q_heads: 12}
  - {source: capture}
  - {source: synthetic}
  - {pattern: gaussian}
  - {source: file}
  - 3
methods: [kvii, oscar, {use: kivi, sett: {}}, {use: kivi, set: {group: 0}}, 5]
measure: [error, speed, error, kernel_time, perplexity]
probes: {count: 0, placement: strides}
seeds: [0, -1, 0]
backend: gpu
calibration: 4
evaluation: teacher_forced
output: [a]
)") == Lines{
           "e.yaml:1:9: schema 2 is not known: this release reads schema 1",
           "e.yaml:2:7: 'name' must be text, found 7 (put it in quotes: \"7\")",
           "e.yaml:4:34: 'pattern' must be one of gaussian, outlier_channels, mean_dominated, "
           "low_norm_sink, high_norm, modality, constant, found 'gausian' (did you mean "
           "'gaussian'?)",
           "e.yaml:4:51: 'tokens' must be a whole number from 1 to 16777216, found 'many'",
           "e.yaml:4:79: q_heads: 12 query heads cannot be shared by 8 key/value heads",
           "e.yaml:5:5: a capture needs a 'path'",
           "e.yaml:7:5: a dataset needs a 'source': one of synthetic, capture, model",
           "e.yaml:8:14: 'source' must be one of synthetic, capture, model, found 'file'",
           "e.yaml:9:5: a dataset must be a map of keys, found 3",
           "e.yaml:10:11: unknown method 'kvii' (did you mean 'kivi'?)",
           "e.yaml:10:17: method 'oscar' is ambiguous, papers differ only by case: write "
           "'oscar_ots' (OScaR, arXiv:2605.19660) or 'oscar_cov' (OSCAR, arXiv:2605.17757)",
           "e.yaml:10:36: unknown key 'sett' in a method with 'use' (did you mean 'set'?)",
           "e.yaml:10:72: 'group' must be a whole number from 1 to 1048576, found 0",
           "e.yaml:10:77: 'methods' must be text, found 5 (put it in quotes: \"5\")",
           "e.yaml:11:18: unknown measure 'speed' (valid: error, attention, tni, memory, "
           "kernel_time, tokens, residual, operations, perplexity, needle, divergence)",
           "e.yaml:11:25: measure 'error' is listed twice",
           "e.yaml:11:45: measure perplexity is of whole models: it needs a dataset with source: "
           "model",
           "e.yaml:12:17: 'count' must be a whole number from 1 to 16777216, found 0",
           "e.yaml:12:31: 'placement' must be one of strided, last, all, found 'strides' (did you "
           "mean 'strided'?)",
           "e.yaml:13:12: 'seeds' must be a whole number of at least 0, found -1",
           "e.yaml:13:16: seed 0 is listed twice",
           "e.yaml:14:10: 'backend' must be one of reference, cpu, cuda, found 'gpu' (did you mean "
           "'cpu'?)",
           "e.yaml:15:14: the calibration must be a map of keys, found 4",
           "e.yaml:16:13: 'evaluation' is of whole models: it needs a dataset with source: model",
           "e.yaml:17:9: 'output' must be text, found a list"});
}

TEST_CASE("missing sections, broken YAML, missing files") {
  const ExperimentFolder folder;
  CHECK(folder.mistakes("schema: 1\n") ==
        Lines{"e.yaml:1:1: 'dataset' is missing", "e.yaml:1:1: 'methods' is missing"});
  CHECK(folder.mistakes("") ==
        Lines{"e.yaml: the experiment must be a map of keys, found nothing"});
  CHECK(folder.mistakes("schema: 1\ndataset: {a: 1\nmethods: [").size() == 1);
  CHECK_THAT(folder.mistakes("schema: [1\nname: 2").front(), ContainsSubstring("e.yaml:2:"));
  CHECK_THAT(folder.mistakes("schema: [1\nname: 2").front(), ContainsSubstring("YAML: "));
  CHECK(folder.mistakes(kSmall + "schema: 1\n") ==
        Lines{"e.yaml:4:1: key 'schema' is given twice (first on line 1)"});
  CHECK(folder.mistakes(kSmall + "---\na: 1\n") ==
        Lines{"e.yaml: holds more than one YAML document"});
  CHECK_THROWS_WITH(config::load(folder.path(), {}),
                    folder.path().string() + ": is a folder, not a file");
  CHECK_THROWS_WITH(config::load(folder.path() / "none.yaml", {}),
                    (folder.path() / "none.yaml").string() + ": no such file");
  CHECK_THAT(
      folder.mistakes("schema: 1\ndataset: {source: capture, path: x.h5}\nmethods: [kivi]").front(),
      ContainsSubstring("e.yaml:2:34: 'x.h5': no such file (looked for x.h5, "));
}

TEST_CASE("a name is the results file's") {
  const ExperimentFolder folder;
  const std::string rule =
      "'name' names the results file: it cannot be empty, begin with '.' or hold '/' or control "
      "characters, found ";
  for (const std::string name : {"", "../../x", ".hidden", "a/b"}) {
    CHECK(folder.mistakes(kSmall + "name: '" + name + "'\n") ==
          Lines{"e.yaml:4:7: " + rule + "'" + name + "'"});
  }
  CHECK(folder.load(kSmall + "name: größe 2.5\n").output == "results/größe 2.5.h5");
}

TEST_CASE("messages show the beginning of long texts") {
  const ExperimentFolder folder;
  CHECK(folder.mistakes("root:x:0:0\nbin:x:1:1\n") ==
        Lines{"e.yaml:1:1: the experiment must be a map of keys, found 'root:x:0:0 bin:x:1:1'"});
  const std::string message = folder.mistakes(std::string(500, 'a')).front();
  CHECK_THAT(message, ContainsSubstring("found '" + std::string(80, 'a') + "…'"));
}

TEST_CASE("kernel_time needs a backend with kernels") {
  const ExperimentFolder folder;
  CHECK(folder.mistakes(kSmall + "measure: [kernel_time]\n") ==
        Lines{"e.yaml:4:11: measure kernel_time needs a backend that has kernels; reference has "
              "none"});
  CHECK(folder.mistakes(kSmall + "measure: [kernel_time]\nbackend: cpu\n").empty());
}

TEST_CASE("mistakes of sweeps") {
  const ExperimentFolder folder;
  CHECK(folder.mistakes(R"(schema: 1
dataset: {source: capture, path: e.yaml}
methods: [kivi]
sweep:
  grid: {grup: [1], group: [32, 32, x], kv_heads: [1], seed: [1], key.codec.bits: 3, window.sink: []}
  zip: {key.codec.clip: [.9, none], value.codec.clip: [0.9], group: [1, 2]}
  step: 3
)") == Lines{
           "e.yaml:5:10: unknown sweep axis 'grup' (did you mean 'group'?)",
           "e.yaml:5:33: axis 'group' has the value 32 twice",
           "e.yaml:5:37: 'group' must be a whole number from 1 to 1048576, found 'x'",
           "e.yaml:5:41: axis 'kv_heads' is a key of synthetic datasets, and none is listed",
           "e.yaml:5:56: seeds are no sweep axis: list them under 'seeds'",
           "e.yaml:5:83: axis 'key.codec.bits' must be a list of values, found 3",
           "e.yaml:5:99: axis 'window.sink' must be a list of values, found an empty list",
           "e.yaml:6:8: lists of 'sweep.zip' must be equally long: 'key.codec.clip' has 2 values, "
           "'value.codec.clip' has 1",
           "e.yaml:6:8: axis 'group' is in grid and in zip",
           "e.yaml:7:3: unknown key 'step' in 'sweep' (valid: grid, zip)"});
}

TEST_CASE("a zip may repeat a value, but no step") {
  const ExperimentFolder folder;
  const std::string zip = "sweep: {zip: {group: [32, 64, 32], window.recent: [0, 0, ";
  CHECK(folder.mistakes(kSmall + zip + "128]}}\n").empty());
  CHECK(folder.mistakes(kSmall + zip + "0]}}\n") ==
        Lines{R"(e.yaml:4:14: 'sweep.zip' has the step {"group":32,"window.recent":0} twice)"});
}

TEST_CASE("the stretch of a capture and of a calibration set") {
  const ExperimentFolder folder;
  CHECK(folder
            .mistakes(R"(schema: 1
dataset: {source: capture, path: e.yaml, tokens: 0, from: 4}
calibration: {source: capture, path: e.yaml, tokens: 512, from: -1}
methods: [kivi]
sweep: {zip: {calibration.from: [0, x], calibration.tokens: [512, 0]}}
)")
            .size() == 5);
}

TEST_CASE("mistakes of exclusions") {
  const ExperimentFolder folder;
  CHECK(folder.mistakes(kSmall + R"(sweep: {grid: {group: [32, 64]}}
exclude:
  - {when: {metod: kivi}, reason: x}
  - {when: {method: [kivi, kvii]}, reason: x}
  - {when: {group: wide}, reason: x}
  - {when: {method: quarot, group: 48, seed: 9}, reason: not here now}
  - {when: {window.recent: 0}, reason: x}
  - {when: {layer: first}, reason: x}
  - {when: {dataset: gausian, seed: -3}}
  - {reason: x, why: y}
)") == Lines{"e.yaml:6:13: unknown key 'metod' in 'when' (did you mean 'method'?)",
             "e.yaml:7:28: no method of this experiment is 'kvii' (did you mean 'kivi'?)",
             "e.yaml:8:20: 'group' must be a whole number from 1 to 1048576, found 'wide'",
             "e.yaml:10:13: unknown key 'window.recent' in 'when' (valid: method, dataset, layer, "
             "seed, group)",
             "e.yaml:11:20: 'when.layer' must be a whole number of at least 0, found 'first'",
             "e.yaml:12:5: an exclusion needs a 'reason'",
             "e.yaml:12:22: no dataset of this experiment is 'gausian' (did you mean 'gaussian'?)",
             "e.yaml:12:37: 'when.seed' must be a whole number of at least 0, found -3",
             "e.yaml:13:5: an exclusion needs 'when'",
             "e.yaml:13:17: unknown key 'why' in an exclusion (did you mean 'when'?)"});
}

TEST_CASE("methods: labels, own recipes, repetitions") {
  const ExperimentFolder folder;
  const auto with = [](const std::string& methods) {
    return "schema: 1\ndataset: {source: synthetic}\nmethods: " + methods + "\n";
  };
  const config::Experiment experiment = folder.load(
      with("[{use: kivi, set: {group: 64, window: {recent: 0}}}, {id: a, label: A}, {use: a, set: "
           "{group: 2}}]"));
  CHECK(experiment.methods[0].label == "kivi (group=64, window.recent=0)");
  CHECK(experiment.methods[0].recipe.id == "kivi");
  CHECK(experiment.methods[1].label == "A");
  CHECK(experiment.methods[2].label == "a (group=2)");
  const config::Experiment ruled =
      folder.load(with("[{use: kivi, set: {group: 64}, layers: {'0-1': {use: bf16}}}]"));
  const method::Recipe& recipe = ruled.methods[0].recipe;
  CHECK(method::on_layer(recipe, 1).settings == method::preset("bf16").settings);
  CHECK(method::on_layer(recipe, 2).settings.at("key.codec.group") == 64);
  CHECK(ruled.methods[0].label == "kivi (group=64, layers={\"0-1\":{\"use\":\"bf16\"}})");
  CHECK(folder.mistakes(with("[{use: kivi, layers: {'0-1': {use: bf}}}]")) ==
        Lines{"e.yaml:3:45: unknown method 'bf' (did you mean 'bf16'?)"});
  CHECK(folder.mistakes(with("[kivi, kivi]")) ==
        Lines{"e.yaml:3:17: method 'kivi' is listed twice; give one of them another 'label'"});
  CHECK(folder.mistakes(with("[{id: kivi, key: {}}]")) ==
        Lines{"e.yaml:3:16: 'kivi' is a built-in method: choose another id, or write {use: kivi, "
              "set: {…}}"});
  CHECK(folder.mistakes(with("[]")) ==
        Lines{"e.yaml:3:10: 'methods' must be a list of ids or recipes, found an empty list"});
  CHECK(folder.mistakes(with("kivi")) ==
        Lines{"e.yaml:3:10: 'methods' must be a list of ids or recipes, found 'kivi'"});
}

TEST_CASE("an edit that a later one overrides is no part of the label, and rows say so") {
  const ExperimentFolder folder;
  const config::Experiment experiment = folder.load(R"(schema: 1
dataset: {source: synthetic}
methods:
  - {use: kivi, set: {key.codec.group: 16, group: 64}}
  - {use: kivi, set: {group: 64, key.codec.group: 16}}
  - {use: kivi, set: {group: 8, key: {codec: {group: 16}}, value.codec.group: 32}}
)");
  REQUIRE(experiment.methods.size() == 3);
  CHECK(experiment.methods[0].label == "kivi (group=64)");
  CHECK(experiment.methods[0].notes ==
        Lines{"set: key.codec.group=16 has no effect, a later key sets the same"});
  CHECK(experiment.methods[1].label == "kivi (group=64, key.codec.group=16)");
  CHECK(experiment.methods[1].notes.empty());
  CHECK(experiment.methods[2].label == "kivi (key.codec.group=16, value.codec.group=32)");
  CHECK(experiment.methods[2].notes ==
        Lines{"set: group=8 has no effect, a later key sets the same"});
}

TEST_CASE("labels of datasets are unique") {
  const ExperimentFolder folder;
  folder.write("a/kv.h5", "");
  folder.write("b/kv.h5", "");
  const config::Experiment experiment = folder.load(R"(schema: 1
dataset:
  - {source: synthetic, pattern: gaussian, tokens: 256}
  - {source: synthetic, pattern: gaussian, tokens: 512}
  - {source: synthetic, pattern: constant}
  - {source: capture, path: a/kv.h5, layers: [0]}
  - {source: capture, path: a/kv.h5, layers: [1]}
  - {source: capture, path: b/kv.h5, label: mine}
  - {source: capture, path: b/kv.h5}
methods: [kivi]
)");
  Lines labels;
  for (const config::DatasetItem& item : experiment.datasets) labels.push_back(item.label);
  CHECK(labels == Lines{"gaussian tokens=256", "gaussian tokens=512", "constant", "a/kv", "a/kv #2",
                        "mine", "b/kv"});
}

TEST_CASE("a model in another type or on another device is another dataset") {
  const ExperimentFolder folder;
  folder.write("eval.h5", "");
  folder.write("tiny/config.json", "");
  const config::Experiment experiment = folder.load(R"(schema: 1
dataset:
  - {source: model, path: tiny, tokens: eval.h5}
  - {source: model, path: tiny, tokens: eval.h5, dtype: bf16}
  - {source: model, path: tiny, tokens: eval.h5, dtype: fp16, device: cuda}
methods: [kivi]
)");
  Lines labels;
  for (const config::DatasetItem& item : experiment.datasets) labels.push_back(item.label);
  CHECK(labels == Lines{"eval dtype=fp32, device=cpu", "eval dtype=bf16, device=cpu",
                        "eval dtype=fp16, device=cuda"});
  CHECK(folder.mistakes(R"(schema: 1
dataset: {source: model, path: tiny, tokens: eval.h5, device: gpu, dtype: int8}
methods: [kivi]
)") == Lines{"e.yaml:2:63: 'device' must be one of cpu, cuda, found 'gpu' (did you mean 'cpu'?)",
             "e.yaml:2:75: 'dtype' must be one of bf16, fp16, float32, found 'int8'"});
}

TEST_CASE("a dataset listed twice is refused, unless under another label") {
  const ExperimentFolder folder;
  folder.write("a/kv.h5", "");
  CHECK(folder.mistakes(R"(schema: 1
dataset:
  - {source: synthetic, pattern: gaussian}
  - {source: capture, path: a/kv.h5, tokens: 64}
  - {source: synthetic, pattern: gaussian, label: other}
  - {source: synthetic}
  - {source: capture, path: ./a/kv.h5, tokens: 64}
  - {source: capture, path: a/kv.h5, tokens: 65, label: kv}
methods: [kivi]
)") == Lines{"e.yaml:6:5: dataset 'gaussian' is listed twice; give one of them another 'label'",
             "e.yaml:7:5: dataset 'kv' is listed twice; give one of them another 'label'"});
}

TEST_CASE("what is empty is called so, and a cycle of includes is one mistake") {
  const ExperimentFolder folder;
  CHECK(folder.mistakes("schema: 1\ndataset: {source: synthetic}\nmethods: [kivi]\n"
                        "exclude: [{when: {}, reason: x}]\n") ==
        Lines{"e.yaml:4:18: 'when' must be a map of what to leave out, found an empty map"});
  folder.write("c.h5", "");
  CHECK(folder.mistakes("schema: 1\ndataset: {source: capture, path: c.h5, layers: []}\n"
                        "methods: [kivi]\n") ==
        Lines{"e.yaml:2:48: 'layers' must be all or a list of numbers, found an empty list"});
  CHECK(folder
            .mistakes("schema: 1\ndataset: {source: synthetic, key_norm: -.nan}\n"
                      "methods: [kivi]\n")
            .size() == 1);
  folder.write("a.yaml", "include: e.yaml\n");
  CHECK(folder.mistakes("include: a.yaml\nschema: 1\n") ==
        Lines{"a.yaml:1:10: 'e.yaml' includes itself"});
}

TEST_CASE("the resolved text reads back to the same experiment") {
  const ExperimentFolder folder;
  const std::string text = R"(schema: 1
name: "true"
description: >
  two
  lines: and more
dataset: {source: synthetic, key_norm: .5}
methods: [bf16, {use: kivi, label: "a: b", set: {key.codec.clip: 0.90}}]
)";
  const config::Experiment first = folder.load(text, {"sweep.grid.group=[32]"});
  const config::Experiment again = folder.load(first.resolved_text);
  CHECK(again.name == "true");
  CHECK(again.description == first.description);
  CHECK(again.methods[1].label == "a: b");
  CHECK(again.methods[1].recipe.settings == first.methods[1].recipe.settings);
  CHECK(again.datasets[0].params == first.datasets[0].params);
  CHECK(again.grid[0].key == "group");
  CHECK(again.resolved_text == first.resolved_text);
}

TEST_CASE("a rotation's file is found from the experiment's folder") {
  const ExperimentFolder folder;
  folder.write("r.h5", "");
  const std::string file = "file:" + (folder.path() / "r.h5").string();
  const config::Experiment experiment =
      folder.load(kSmall, {"methods=[{use: quarot, set: {key.rotate: 'file:r.h5'}}, {id: own, key: "
                           "{rotate: 'file:r.h5'}}]",
                           "sweep.grid.value.rotate=[none, 'file:r.h5']"});
  CHECK(experiment.methods[0].recipe.settings.at("key.rotate") == file);
  CHECK(experiment.methods[1].recipe.settings.at("value.rotate") == file);
  CHECK(experiment.grid[0].values[1] == file);
  // Values take it from the keys: each says where it is missing.
  const auto missing =
      folder.mistakes(kSmall, {"methods=[{id: own, key: {rotate: 'file:no.h5'}}]"});
  REQUIRE(missing.size() == 2);
  CHECK_THAT(missing[0], ContainsSubstring("key.rotate: 'no.h5': no such file"));
  CHECK_THAT(missing[1], ContainsSubstring("value.rotate: 'no.h5': no such file"));
}

TEST_CASE("published numbers are kept with the resolved experiment") {
  const ExperimentFolder folder;
  folder.write("t.published.yaml", R"(schema: 1
paper: A
table: Table 1
title: numbers
model: M-8B
certainty: read from
metrics: {score: {beside: wo_rel}}
rows: [{method: KIVI, label: kivi, values: {score: 2}}]
)");
  const config::Experiment experiment = folder.load(kSmall + "published: t.published.yaml\n");
  CHECK_THAT(experiment.resolved_text, ContainsSubstring("paper: A"));
  // What is resolved is an experiment itself.
  CHECK(folder.mistakes(experiment.resolved_text).empty());
  // Mistakes are told where they stand.
  folder.write("t.published.yaml", "schema: 1\npaper: A\n");
  const Lines mistakes = folder.mistakes(kSmall + "published: t.published.yaml\n");
  REQUIRE(mistakes.size() == 4);
  CHECK(mistakes.front() == "t.published.yaml:1:1: 'table' is missing");
  CHECK_THAT(folder.mistakes(kSmall + "published: none.yaml\n").front(),
             ContainsSubstring("e.yaml:4:12: 'none.yaml': no such file"));
  CHECK_THAT(folder.mistakes(kSmall + "published: [1]\n").front(),
             ContainsSubstring("'published' must name a file of published numbers, found a list"));
}
