#include "setups.h"

#include <numeric>
#include <utility>

namespace kvlab::gpu_check {
namespace {

int token_group(const Format& format) {
  const auto of = [](const SideFormat& side) {
    return side.axis == Axis::channel ? side.group : 1;
  };
  return std::lcm(of(format.key), of(format.value));
}

}  // namespace

WindowRule rule_of(const Format& format, Flush flush, int sink, int recent) {
  return {flush, sink, recent, token_group(format)};
}

SideFormat side(Axis axis, int group, int bits, Zero zero, Type params) {
  return {bits, axis, group, zero, params};
}

Format format_of(int dim, const SideFormat& key, const SideFormat& value) {
  Format format;
  format.dim = dim;
  format.key = key;
  format.value = value;
  return format;
}

Named named(const std::string& name, const Format& format) {
  Setup setup;
  setup.format = format;
  setup.rule = rule_of(format, Flush::block, 0, 0);
  return {name, setup};
}

namespace {

/// Formats of every width, axis, group, zero and parameter type, without transforms.
std::vector<Named> plain_setups() {
  std::vector<Named> all;
  for (const int dim : {64, 128, 256}) {
    const std::string d = "/d" + std::to_string(dim);
    all.push_back(named("f1" + d, f1(dim)));
    Format format = f2(dim);
    format.norm = Norm::none;
    all.push_back(named("f2 without norm" + d, format));
  }
  for (const int group : {32, 64, 128}) {
    const std::string g = std::to_string(group);
    all.push_back(named("k:channel,g" + g,
                        format_of(128, side(Axis::channel, group, 2), side(Axis::token, 64, 2))));
    all.push_back(named("k:token,g" + g,
                        format_of(128, side(Axis::token, group, 2), side(Axis::token, 32, 2))));
  }
  all.push_back(named("k:channel,g128/d256",
                      format_of(256, side(Axis::channel, 128, 2), side(Axis::token, 128, 2))));
  for (const int bits : {4, 8}) {
    const std::string b = std::to_string(bits);
    all.push_back(named("k:channel,g32,b" + b, format_of(128, side(Axis::channel, 32, bits),
                                                         side(Axis::token, 128, bits))));
    all.push_back(named("k:token,g64,b" + b,
                        format_of(128, side(Axis::token, 64, bits), side(Axis::token, 32, 2))));
    all.push_back(named("k:token,g64,b" + b + "/d64",
                        format_of(64, side(Axis::token, 64, bits), side(Axis::token, 64, bits))));
    all.push_back(named("k:token,g64,b" + b + "/d256",
                        format_of(256, side(Axis::token, 64, bits), side(Axis::token, 128, bits))));
  }
  for (const Type type : {Type::bf16, Type::f32}) {
    const std::string t = type == Type::bf16 ? "bf16" : "f32";
    all.push_back(named("params " + t, format_of(128, side(Axis::token, 128, 2, Zero::value, type),
                                                 side(Axis::token, 32, 2, Zero::value, type))));
    all.push_back(
        named("channel, params " + t, format_of(128, side(Axis::channel, 64, 2, Zero::value, type),
                                                side(Axis::token, 128, 2, Zero::value, type))));
  }
  const std::pair<const char*, Zero> zeros[] = {
      {"symmetric", Zero::none}, {"code offset", Zero::offset}, {"codebook", Zero::codebook}};
  for (const auto& [name, zero] : zeros) {
    all.push_back(named(
        name, format_of(128, side(Axis::channel, 32, 2, zero), side(Axis::token, 32, 2, zero))));
    all.push_back(
        named(std::string(name) + " per token",
              format_of(128, side(Axis::token, 128, 2, zero), side(Axis::token, 128, 2, zero))));
  }
  Named integer = all[all.size() - 3];
  integer.name = "rounded zero";
  integer.setup.format = format_of(128, side(Axis::channel, 32, 2, Zero::offset),
                                   side(Axis::token, 32, 2, Zero::offset));
  integer.setup.rule = rule_of(integer.setup.format, Flush::block, 0, 0);
  integer.setup.integer_zero = true;
  all.push_back(integer);
  Named ties = named("half up", f1());
  ties.setup.half_up = true;
  all.push_back(ties);
  Named range = named("range 0.9", f2());
  range.setup.format.norm = Norm::none;
  range.setup.range_ratio = 0.9f;
  all.push_back(range);
  for (const auto& [name, clip] :
       {std::pair{"clip row", Clip::row}, std::pair{"clip group", Clip::group},
        std::pair{"clip calibrated", Clip::calibrated}}) {
    for (const bool channel : {false, true}) {
      Named clipped =
          named(std::string(name) + (channel ? ", channel" : ", token"),
                format_of(128, channel ? side(Axis::channel, 32, 2) : side(Axis::token, 64, 2),
                          side(Axis::token, 128, 2)));
      clipped.setup.clip = clip;
      all.push_back(clipped);
    }
  }
  for (const Type type : {Type::f16, Type::f32}) {
    Named source = named(type == Type::f16 ? "from f16" : "from f32", f1());
    source.setup.source = type;
    source.setup.format.window = type == Type::f16 ? Type::f16 : Type::bf16;
    all.push_back(source);
  }
  return all;
}

/// Rotations, norms and centres.
std::vector<Named> transformed_setups() {
  std::vector<Named> all;
  const auto add_setup = [&](const std::string& name, const Format& format, auto change) {
    Named entry = named(name, format);
    change(entry.setup);
    all.push_back(entry);
  };
  const auto hadamard = [](Setup& setup) {
    setup.key_rotation = setup.value_rotation = Rotation::Kind::hadamard;
  };
  const auto normed = [](Format format, Norm norm, Type type = Type::f16) {
    format.norm = norm;
    format.norm_type = type;
    return format;
  };
  for (const int dim : {64, 128, 256}) {
    const std::string d = "/d" + std::to_string(dim);
    add_setup("f1, hadamard" + d, f1(dim), hadamard);
    add_setup("f1, hadamard, norm" + d, normed(f1(dim), Norm::head), [&](Setup& s) {
      hadamard(s);
      s.scale = TokenScale::l2_head;
    });
    add_setup("f2, hadamard" + d, f2(dim), [&](Setup& s) {
      hadamard(s);
      s.scale = TokenScale::l2_head;
    });
    add_setup("f1, dense" + d, f1(dim),
              [](Setup& s) { s.key_rotation = s.value_rotation = Rotation::Kind::dense; });
    add_setup("f2, dense per head, centre" + d, f2(dim), [](Setup& s) {
      s.key_rotation = s.value_rotation = Rotation::Kind::dense;
      s.per_head = s.center = true;
      s.scale = TokenScale::l2_head;
    });
  }
  for (const int group : {64, 128}) {
    Format format = f2();
    format.key.group = group;
    add_setup("f2, g" + std::to_string(group) + ", hadamard", format, [&](Setup& s) {
      hadamard(s);
      s.scale = TokenScale::l2_head;
    });
  }
  add_setup("keys hadamard alone", f1(),
            [](Setup& s) { s.key_rotation = Rotation::Kind::hadamard; });
  add_setup("values hadamard alone", f1(),
            [](Setup& s) { s.value_rotation = Rotation::Kind::hadamard; });
  add_setup("f1, hadamard, from f16", f1(), [&](Setup& s) {
    hadamard(s);
    s.source = s.format.window = Type::f16;
  });
  add_setup("f1, dense, from f16", f1(), [](Setup& s) {
    s.key_rotation = s.value_rotation = Rotation::Kind::dense;
    s.source = s.format.window = Type::f16;
  });
  add_setup("f2, dense per head", f2(), [](Setup& s) {
    s.key_rotation = s.value_rotation = Rotation::Kind::dense;
    s.per_head = true;
    s.scale = TokenScale::l2_head;
  });
  for (const auto& [of, clip] :
       {std::pair{"clip row", Clip::row}, std::pair{"clip group", Clip::group}}) {
    add_setup(std::string("f1, hadamard, ") + of, f1(), [&](Setup& s) {
      hadamard(s);
      s.clip = clip;
      s.half_up = true;
    });
    add_setup(std::string("f1, dense per head, from f16, ") + of, f1(), [&](Setup& s) {
      s.key_rotation = s.value_rotation = Rotation::Kind::dense;
      s.source = s.format.window = Type::f16;
      s.per_head = true;
      s.clip = clip;
    });
    Format g32 = f1();
    g32.key.group = 32;
    add_setup(std::string("k:token,g32, hadamard, norm, ") + of, normed(g32, Norm::head),
              [&](Setup& s) {
                hadamard(s);
                s.scale = TokenScale::l2_head;
                s.clip = clip;
              });
  }
  add_setup(
      "symmetric, hadamard",
      format_of(128, side(Axis::token, 64, 2, Zero::none), side(Axis::token, 32, 2, Zero::none)),
      hadamard);
  add_setup("code offset, hadamard, bf16 parameters",
            format_of(128, side(Axis::channel, 64, 2, Zero::offset, Type::bf16),
                      side(Axis::token, 64, 2, Zero::offset, Type::bf16)),
            hadamard);
  add_setup("f1, hadamard, rounded zero",
            format_of(128, side(Axis::token, 64, 2, Zero::offset),
                      side(Axis::token, 32, 2, Zero::offset)),
            [&](Setup& s) {
              hadamard(s);
              s.integer_zero = true;
            });
  add_setup("norm over heads, f32", normed(f2(), Norm::heads, Type::f32), [&](Setup& s) {
    hadamard(s);
    s.scale = TokenScale::l2_heads;
  });
  add_setup("norm over heads, no rotation", normed(f1(), Norm::heads),
            [](Setup& s) { s.scale = TokenScale::l2_heads; });
  add_setup("inverse norm", normed(f1(), Norm::head, Type::bf16), [](Setup& s) {
    s.scale = TokenScale::l2_head;
    s.format.norm_inverse = true;
  });
  add_setup("scale before rotation", normed(f1(), Norm::head), [&](Setup& s) {
    hadamard(s);
    s.scale = TokenScale::l2_head;
    s.scale_first = s.center = true;
  });
  add_setup("largest of a head", normed(f1(), Norm::head), [&](Setup& s) {
    hadamard(s);
    s.scale = TokenScale::max_head;
  });
  add_setup("mean size of a head", normed(f2(), Norm::head),
            [](Setup& s) { s.scale = TokenScale::mean_abs_head; });
  return all;
}

}  // namespace

std::vector<Named> all_setups() {
  std::vector<Named> all = plain_setups();
  for (Named& entry : transformed_setups()) all.push_back(std::move(entry));
  return all;
}

}  // namespace kvlab::gpu_check
