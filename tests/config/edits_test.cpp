// An experiment of several files and edits: `include:` and `--set`.
#include "catch.h"
#include "config/experiment_file.h"

using namespace kvlab;
using Lines = std::vector<std::string>;

TEST_CASE("includes: later keys win, places name the file they are in") {
  const ExperimentFolder folder;
  folder.write("base.yaml", "schema: 1\nmethods: [bf16]\nseeds: [0, 1]\nnam: x\n");
  folder.write("more.yaml", "seeds: [5]\nprobes: {count: 8}\n");
  const std::string text =
      "include: [base.yaml, more.yaml]\ndataset: {source: synthetic}\nmethods: [kivi]\n";
  CHECK(folder.mistakes(text) ==
        Lines{"base.yaml:4:1: unknown key 'nam' in the experiment (did you mean 'name'?)"});
  folder.write("base.yaml", "schema: 1\nmethods: [bf16]\nseeds: [0, 1]\n");
  const config::Experiment experiment = folder.load(text);
  CHECK(experiment.methods.front().label == "kivi");
  CHECK(experiment.seeds == std::vector<int64_t>{5});
  CHECK(experiment.probes.count == 8);
  CHECK(experiment.source_text == text);
  CHECK_THAT(experiment.resolved_text, ContainsSubstring("kivi"));
  CHECK_THAT(experiment.resolved_text, !ContainsSubstring("include"));
}

TEST_CASE("wrong includes") {
  const ExperimentFolder folder;
  folder.write("loop.yaml", "include: e.yaml\n");
  CHECK(folder.mistakes("include: loop.yaml\n" + kSmall) ==
        Lines{"loop.yaml:1:10: 'e.yaml' includes itself"});
  CHECK_THAT(folder.mistakes("include: none.yaml\n" + kSmall).front(),
             ContainsSubstring("e.yaml:1:10: 'none.yaml': no such file"));
}

TEST_CASE("an edit by --set takes dotted keys and YAML values") {
  const ExperimentFolder folder;
  folder.write("a.h5", "");
  const auto load = [&](const Lines& edits) { return folder.load(kSmall, edits); };
  CHECK(load({"dataset.tokens=64"}).datasets[0].params.at("tokens") == 64);
  CHECK(load({"dataset.0.tokens=64"}).datasets[0].params.at("tokens") == 64);
  CHECK(load({"dataset={source: capture, path: a.h5}"}).datasets[0].path == folder.path() / "a.h5");
  CHECK(load({"methods=[bf16, quarot]"}).methods[1].label == "quarot");
  CHECK(load({"methods.1=quarot"}).methods[1].label == "quarot");
  CHECK(load({"probes.count=8", "probes.placement=last"}).probes.placement == "last");
  const config::Experiment swept =
      load({"sweep.grid.window.recent=[0, 32]", "sweep.grid.group=[32]", "sweep.grid.group=[64]"});
  REQUIRE(swept.grid.size() == 2);
  CHECK(swept.grid[0].key == "window.recent");
  CHECK(swept.grid[1].values == std::vector<nlohmann::json>{64});
  CHECK_THAT(swept.resolved_text, ContainsSubstring("window.recent"));

  const std::string listed =
      "schema: 1\nseeds: [3]\nname: \"7\"\ndataset: [{source: synthetic}]\n"
      "methods: [{use: kivi, set: {key.codec.bits: 4}}]\n";
  CHECK(folder.load(listed, {"dataset.tokens=64"}).datasets[0].params.at("tokens") == 64);
  CHECK(folder.load(listed, {"methods.0.set.key.codec.bits=3"})
            .methods[0]
            .recipe.settings.at("key.codec.bits") == 3);
  CHECK(folder.load(listed, {"methods.0.set.window.recent=0"})
            .methods[0]
            .recipe.settings.at("window.recent") == 0);
  CHECK(folder.load(listed, {"seeds="}).seeds == std::vector<int64_t>{0});
  CHECK(folder.load(listed).name == "7");
}

TEST_CASE("mistakes of --set") {
  const ExperimentFolder folder;
  const std::string listed =
      "schema: 1\ndataset: [{source: synthetic}, {source: synthetic, pattern: constant}]\n"
      "methods: [kivi]\n";
  CHECK(folder.mistakes(listed, {"group"}) == Lines{"--set group: expected KEY=VALUE"});
  CHECK(folder.mistakes(listed, {"seds=[1]"}) ==
        Lines{"--set seds: unknown key 'seds' in the experiment (did you mean 'seeds'?)"});
  CHECK(folder.mistakes(listed, {"seeds=[x]"}) ==
        Lines{"--set seeds: 'seeds' must be a whole number of at least 0, found 'x'"});
  CHECK(folder.mistakes(listed, {"dataset.tokens=3"}) ==
        Lines{"--set dataset.tokens: 'dataset.tokens' cannot be set: 'tokens' is no index of a "
              "list of 2"});
  CHECK(folder.mistakes(listed, {"dataset.2.tokens=3"}) ==
        Lines{"--set dataset.2.tokens: 'dataset.2.tokens' cannot be set: '2' is no index of a list "
              "of 2"});
  CHECK(folder.mistakes(listed, {"methods.0.label=x"}) ==
        Lines{"--set methods.0.label: 'methods.0.label' cannot be set: 'kivi' has no keys"});
  CHECK(folder.mistakes(listed, {"seeds=[1"}).size() == 1);
  // An empty value removes what is there, and nothing else passes for that.
  CHECK(
      folder.mistakes(listed, {"seds="}) ==
      Lines{
          "--set seds: 'seds' cannot be removed, it is not set (valid: schema, dataset, methods)"});
  CHECK(folder.mistakes(listed, {"method="}).front().ends_with("(did you mean 'methods'?)"));
  CHECK(folder.mistakes(listed, {"dataset.1.pattrn="})
            .front()
            .ends_with("(did you mean 'pattern'?)"));
  CHECK(folder.mistakes(listed, {"probes.count="}).size() == 1);
  CHECK(folder.mistakes(listed, {"dataset.1.pattern=", "dataset.0.tokens=512"}).empty());
}
