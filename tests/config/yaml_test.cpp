#include "base/yaml.h"

#include "catch.h"

using namespace kvlab;

TEST_CASE("scalars are typed by the core schema") {
  yaml::Problems problems;
  const yaml::Node node = yaml::parse(
      "[1, -7, +3, 0x1f, 0o17, .96, -1.5e3, 1e3, 1., true, False, yes, 'true', \"3\", none, 1_0, "
      "99999999999999999999, -, 1.2.3]",
      "f", problems);
  REQUIRE(problems.empty());
  CHECK(
      yaml::to_json(node).dump() ==
      R"([1,-7,3,31,15,0.96,-1500.0,1000.0,1.0,true,false,"yes","true","3","none","1_0",1e+20,"-","1.2.3"])");
  CHECK(yaml::parse("a: ~\nb:\nc: null", "f", problems).members[1].value.kind ==
        yaml::Node::Kind::null);
}

TEST_CASE("anchors are copies, and a few lines cannot fill the memory") {
  yaml::Problems problems;
  const yaml::Node node = yaml::parse("a: &x {b: 1}\nc: *x\n", "f", problems);
  CHECK(problems.empty());
  CHECK(node.find("c")->find("b")->value == 1);
  CHECK(node.find("c")->line == 2);
  std::string bomb = "a0: &a0 [1,1,1,1,1,1,1,1,1,1]\n";
  for (int i = 1; i < 12; ++i) {
    bomb += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [";
    for (int j = 0; j < 10; ++j) bomb += "*a" + std::to_string(i - 1) + ",";
    bomb += "]\n";
  }
  yaml::parse(bomb, "f", problems);
  REQUIRE(problems.size() == 1);
  CHECK(problems[0].message == "aliases make the file too large");
}
