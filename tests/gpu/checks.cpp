#include "checks.h"

#include <utility>

#include "comparisons.h"
#include "decoder_checks.h"
#include "setups.h"

namespace kvlab::gpu_check {
namespace {

constexpr int kLengths[] = {1, 31, 32, 33, 127, 128, 129, 255, 257, 4096 + 7};
constexpr int kSmall = 513;

void add_encode(std::vector<Case>& all, bool small) {
  for (const Named& entry : all_setups()) {
    for (const int tokens : kLengths) {
      if (small && tokens > kSmall) continue;
      all.push_back(
          {"encode/" + entry.name + "/T" + std::to_string(tokens),
           [entry, tokens](std::string& note) { return check_encode(entry.setup, tokens, note); }});
    }
    // A sink longer than the sequences, and one of which the history is no multiple of anything.
    for (const auto& [sink, recent] : {std::pair{300, 0}, std::pair{5, 37}}) {
      Setup setup = entry.setup;
      setup.rule = rule_of(setup.format, Flush::block, sink, recent);
      all.push_back({"encode/" + entry.name + "/T257,sink" + std::to_string(sink) + ",recent" +
                         std::to_string(recent),
                     [setup](std::string& note) { return check_encode(setup, 257, note); }});
    }
  }
}

/// Prefills of many sequences.
void add_many(std::vector<Case>& all) {
  for (const Named& entry : all_setups()) {
    if (entry.name != "f1/d128" && entry.name != "f2 without norm/d128" &&
        entry.name != "f1, hadamard, norm/d128" && entry.name != "f2, hadamard/d128" &&
        entry.name != "f2, dense per head" && entry.name != "norm over heads, f32") {
      continue;
    }
    all.push_back({"encode/" + entry.name + "/150 sequences", [entry](std::string& note) {
                     return check_encode(entry.setup, 200, note, many_lengths(200));
                   }});
  }
}

void add_dequantize(std::vector<Case>& all) {
  for (const Named& entry : all_setups()) {
    for (const bool undo : {false, true}) {
      Setup setup = entry.setup;
      setup.rule.sink = 3;
      all.push_back(
          {"dequantize/" + entry.name + (undo ? "/undone" : "/codec"),
           [setup, undo](std::string& note) { return check_dequantize(setup, 201, undo, note); }});
    }
  }
}

void add_attend(std::vector<Case>& all, bool small) {
  for (const Named& entry : all_setups()) {
    for (const int tokens : kLengths) {
      if (small && tokens > kSmall) continue;
      all.push_back({"attend/" + entry.name + "/T" + std::to_string(tokens),
                     [entry, tokens](std::string& note) {
                       return check_attend(entry.setup, tokens, {}, note);
                     }});
    }
    Setup setup = entry.setup;
    setup.rule = rule_of(setup.format, Flush::block, 5, 37);
    all.push_back({"attend/" + entry.name + "/T300,sink5,recent37",
                   [setup](std::string& note) { return check_attend(setup, 300, {}, note); }});
  }
  for (const Named& entry :
       {named("f1", f1()), named("f1/d64", f1(64)), named("f1/d256", f1(256))}) {
    for (const int group : {1, 2, 3, 8, 16}) {
      for (const int queries : {1, 5, 8}) {
        Setup setup = entry.setup;
        setup.rule = rule_of(setup.format, Flush::block, 4, 40);
        all.push_back({"attend/" + entry.name + "/gqa" + std::to_string(group) + ",queries" +
                           std::to_string(queries),
                       [setup, group, queries](std::string& note) {
                         return check_attend(setup, 333, {group, queries, Type::bf16, Type::f32},
                                             note);
                       }});
      }
    }
  }
  for (const Type type : {Type::f16, Type::f32}) {
    const Setup setup = named("", f1()).setup;
    all.push_back({std::string("attend/f1/queries ") + (type == Type::f16 ? "f16" : "f32"),
                   [setup, type](std::string& note) {
                     return check_attend(setup, 333, {4, 1, type, Type::f32}, note);
                   }});
  }
}

void add_steps(std::vector<Case>& all) {
  const std::pair<const char*, Flush> flushes[] = {
      {"block", Flush::block}, {"full", Flush::full}, {"kivi", Flush::kivi}, {"ring", Flush::ring}};
  Format g128 = f2();
  g128.key.group = 128;
  Format normed = f1();
  normed.norm = Norm::head;
  Format heads = f2();
  heads.norm = Norm::heads;
  heads.norm_type = Type::f32;
  Format token_heads = normed;
  token_heads.norm = Norm::heads;
  std::vector<Named> entries = {
      named("f1", f1()),
      named("f2", f2()),
      named("g128", g128),
      named("b4/d64", format_of(64, side(Axis::token, 64, 4), side(Axis::token, 32, 4))),
      named("f1, clip row", f1()),
      named("f1, norm, values rotated", normed),
      named("f1, norm over heads, values rotated", token_heads),
      named("f2, norm over heads, values rotated", heads)};
  for (Named& entry : entries) {
    Setup& setup = entry.setup;
    if (entry.name == "f1, clip row") {
      setup.clip = Clip::row;
      setup.key_rotation = setup.value_rotation = Rotation::Kind::hadamard;
    }
    if (setup.format.norm == Norm::none) continue;
    setup.scale = setup.format.norm == Norm::heads ? TokenScale::l2_heads : TokenScale::l2_head;
    setup.key_rotation = Rotation::Kind::hadamard;
    if (entry.name.find("values rotated") != std::string::npos)
      setup.value_rotation = Rotation::Kind::hadamard;
  }
  for (const Named& entry : entries) {
    for (const auto& [name, flush] : flushes) {
      for (const int recent : {0, 128}) {
        Setup setup = entry.setup;
        setup.rule = rule_of(setup.format, flush, 4, recent);
        all.push_back({"steps/" + entry.name + "/" + name + ",recent" + std::to_string(recent),
                       [setup](std::string& note) {
                         return check_steps(setup, {37, 0, 150}, 300, 1, true, note);
                       }});
      }
    }
    Setup setup = entry.setup;
    setup.rule = rule_of(setup.format, Flush::block, 4, 20);
    all.push_back(
        {"steps/" + entry.name + "/5 tokens, from the source", [setup](std::string& note) {
           return check_steps(setup, {37, 0, 150}, 60, 5, false, note);
         }});
    all.push_back({"steps/" + entry.name + "/5 tokens, from the ring", [setup](std::string& note) {
                     return check_steps(setup, {37, 0, 150}, 60, 5, true, note);
                   }});
    setup.rule = rule_of(setup.format, Flush::block, 4, 20);
    all.push_back({"steps/" + entry.name + "/150 sequences", [setup](std::string& note) {
                     return check_steps(setup, many_lengths(90), 40, 1, true, note);
                   }});
  }
}

}  // namespace

std::vector<Case> all_cases(bool small) {
  std::vector<Case> all;
  add_encode(all, small);
  if (!small) add_many(all);
  add_dequantize(all);
  add_steps(all);
  add_attend(all, small);
  add_decoder(all);
  return all;
}

}  // namespace kvlab::gpu_check