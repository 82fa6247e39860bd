#include "checks.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "decoder_checks.h"
#include "twin.h"

namespace kvlab::gpu_check {
namespace {

using Failures = std::vector<std::string>;

constexpr int kThreads = 2;
constexpr cuda::Stream kStream = nullptr;
constexpr int kLengths[] = {1, 31, 32, 33, 127, 128, 129, 255, 257, 4096 + 7};
constexpr int kSmall = 513;

void append(Failures& all, const Failures& more, const std::string& where) {
  for (const std::string& sentence : more) all.push_back(where + ": " + sentence);
}

/// Waits for the GPU, so that a fault is reported where it happened.
void finish() { demand(cudaDeviceSynchronize(), "a kernel"); }

int token_group(const Format& format) {
  const auto of = [](const SideFormat& side) {
    return side.axis == Axis::channel ? side.group : 1;
  };
  return std::lcm(of(format.key), of(format.value));
}

WindowRule rule_of(const Format& format, Flush flush, int sink, int recent) {
  return {flush, sink, recent, token_group(format)};
}

/// A step's tokens into both caches, from the step's tensor.
void store(const Twin& twin, const Tokens& tokens, int step, int max_step) {
  cpu::write_windows(twin.host, tokens.on_host, step, kThreads);
  cpu::encode(twin.host, twin.host_spec, tokens.on_host, step, kThreads);
  cuda::write_windows(twin.device, tokens.on_device, step, max_step, kStream);
  // One-token groups let at most the step and one more token leave.
  const int most = max_step + twin.host.rule.recent + twin.host.rule.group + 8;
  cuda::encode(twin.device, twin.device_spec, tokens.on_device, step, most, kStream);
  finish();
}

/// Unequal lengths with an empty sequence among them.
std::vector<int> lengths_of(int tokens) { return {tokens, 0, std::max(1, tokens / 3)}; }

/// More sequences than a thread block looks at together, every seventh of them empty.
std::vector<int> many_lengths(int tokens) {
  std::vector<int> lengths;
  for (int i = 0; i < 150; ++i) lengths.push_back(i % 7 == 3 ? 0 : 1 + i * 37 % tokens);
  return lengths;
}

bool exact(const Setup& setup) {
  return setup.key_rotation == Rotation::Kind::none && setup.value_rotation == Rotation::Kind::none;
}

Failures check_encode(Setup setup, int tokens, std::string& note, std::vector<int> lengths = {}) {
  setup.max_tokens = tokens;
  if (lengths.empty()) lengths = lengths_of(tokens);
  setup.batch = static_cast<int>(lengths.size());
  Twin twin(setup);
  twin.set_tokens(lengths);
  const auto source = twin.draw(tokens, 3);
  store(twin, *source, kAllTokens, tokens);
  Failures failures = twin.compare_pools(exact(setup), note);
  append(failures, twin.compare_windows(), "windows");
  return failures;
}

/// The history of both sides against the CPU's decoding of the same blocks.
Failures check_dequantize(Setup setup, int tokens, bool undo, std::string& note) {
  setup.max_tokens = tokens;
  Twin twin(setup);
  twin.set_tokens(lengths_of(tokens));
  const auto source = twin.draw(tokens, 4);
  cpu::write_windows(twin.host, source->on_host, kAllTokens, kThreads);
  cpu::encode(twin.host, twin.host_spec, source->on_host, kAllTokens, kThreads);
  twin.copy_to_device();
  const int dim = setup.format.dim;
  const std::size_t size = static_cast<std::size_t>(setup.batch) * setup.kv_heads * tokens * dim;
  Both<float> key(size);
  Both<float> value(size);
  cpu::dequantize(twin.host, undo ? &twin.host_spec : nullptr, key.host.data(), value.host.data(),
                  Type::f32, tokens, kThreads);
  cuda::dequantize(twin.device, undo ? &twin.device_spec : nullptr, key.device.data(),
                   value.device.data(), Type::f32, tokens, kStream);
  finish();
  Failures failures;
  double worst = 0.0;
  // The sums of a dense rotation run in another order.
  const bool dense = undo && setup.key_rotation == Rotation::Kind::dense;
  const double allowed = dense ? 3e-6 : 1e-6;
  const auto compare = [&](const char* name, const Both<float>& both) {
    const std::vector<float> gpu = both.device.download();
    for (std::size_t row = 0; row < size; row += static_cast<std::size_t>(dim)) {
      double error = 0.0;
      double length = 0.0;
      bool same_poison = true;
      for (std::size_t i = row; i < row + static_cast<std::size_t>(dim); ++i) {
        if (std::isnan(both.host[i]) || std::isnan(gpu[i])) {
          same_poison = same_poison && bits_of(both.host[i]) == bits_of(gpu[i]);
          continue;
        }
        error += std::pow(static_cast<double>(both.host[i]) - gpu[i], 2);
        length += std::pow(static_cast<double>(both.host[i]), 2);
      }
      const double relative = std::sqrt(error / std::max(length, 1e-30));
      worst = std::max(worst, relative);
      if (relative <= allowed && same_poison) continue;
      failures.push_back(std::string(name) + ", row " +
                         std::to_string(row / static_cast<std::size_t>(dim)) +
                         ": relative difference " + std::to_string(relative) +
                         (same_poison ? "" : ", rows differ in what was written"));
      return;
    }
  };
  compare("keys", key);
  compare("values", value);
  note += "worst " + std::to_string(worst * 1e6) + "e-6";
  return failures;
}

struct Queries {
  int group = 4;  // query heads a KV head
  int tokens = 1;
  Type type = Type::bf16;
  Type output = Type::f32;
};

/// Outputs and log-sum-exps of both backends over what the twin holds.
Failures compare_attention(const Twin& twin, const Setup& setup, const Queries& queries,
                           std::string& note) {
  const int dim = setup.format.dim;
  const int q_heads = setup.kv_heads * queries.group;
  const std::size_t rows = static_cast<std::size_t>(setup.batch) * queries.tokens * q_heads;
  std::vector<std::uint8_t> drawn(rows * dim * static_cast<std::size_t>(size_of(queries.type)));
  Numbers numbers(5);
  for (std::size_t i = 0; i < rows * dim; ++i) {
    store_number(drawn.data(), static_cast<std::int64_t>(i), queries.type, numbers.normal());
  }
  const Both<std::uint8_t> query(std::move(drawn));
  Both<std::uint8_t> output(rows * dim * static_cast<std::size_t>(size_of(queries.output)));
  Both<float> sums(rows);
  AttendArgs args;
  args.query = query.host.data();
  args.query_type = queries.type;
  args.query_tokens = queries.tokens;
  args.q_heads = q_heads;
  args.scale = 1.0f / std::sqrt(static_cast<float>(dim));
  args.key_rotation = twin.host_spec.key.rotation;
  args.value_rotation = twin.host_spec.value.rotation;
  args.key_center = twin.host_spec.key.center;
  args.output = output.host.data();
  args.output_type = queries.output;
  args.log_sum_exp = sums.host.data();
  cpu::attend(twin.host, args, kThreads);

  args.query = query.device.data();
  args.key_rotation = twin.device_spec.key.rotation;
  args.value_rotation = twin.device_spec.value.rotation;
  args.key_center = twin.device_spec.key.center;
  args.output = output.device.data();
  args.log_sum_exp = sums.device.data();
  cuda::AttendPlan plan;
  const auto zeroed_scratch = [&] {
    DeviceArray<std::uint8_t> scratch(static_cast<std::size_t>(plan.scratch_bytes));
    if (plan.scratch_bytes > 0)
      demand(cudaMemset(scratch.data(), 0, scratch.bytes()), "cudaMemset");
    return scratch;
  };

  Failures failures;
  double worst = 0.0;
  // Twice: the second run finds what the first left in the scratch memory.
  const auto run = [&](const std::string& how, void* scratch) {
    for (int i = 0; i < 2; ++i) cuda::attend(plan, twin.device, args, scratch, kStream);
    finish();
    const std::vector<std::uint8_t> gpu = output.device.download();
    const std::vector<float> gpu_sums = sums.device.download();
    for (std::size_t row = 0; row < rows; ++row) {
      double error = 0.0;
      double length = 0.0;
      for (std::size_t i = row * dim; i < (row + 1) * dim; ++i) {
        const double a =
            load_number(output.host.data(), static_cast<std::int64_t>(i), queries.output);
        const double b = load_number(gpu.data(), static_cast<std::int64_t>(i), queries.output);
        error += (a - b) * (a - b);
        length += a * a;
      }
      const double relative = std::sqrt(error / std::max(length, 1e-30));
      const float a = sums.host[row];
      const float b = gpu_sums[row];
      const bool sums_agree = a == b || std::fabs(a - b) <= 2e-3f * std::fmax(1.0f, std::fabs(a));
      if (relative > worst) worst = relative;
      if (relative <= 2e-3 && sums_agree) continue;
      if (failures.size() < 3) {
        failures.push_back(how + "query row " + std::to_string(row) + ": relative difference " +
                           std::to_string(relative) + ", log-sum-exp " + std::to_string(b) +
                           ", on the CPU " + std::to_string(a));
      }
    }
  };
  plan = cuda::plan_attend(twin.device, args, setup.max_tokens, cuda::device());
  run("", zeroed_scratch().data());
  const int splits = plan.splits;
  plan =
      cuda::plan_attend(twin.device, args, setup.max_tokens, cuda::device(), cuda::Lengths::unlike);
  if (plan.scheduled) {
    // Also by a schedule that others' lengths made, and where sequences share places.
    std::vector<std::int32_t> others(static_cast<std::size_t>(setup.batch));
    for (std::size_t i = 0; i < others.size(); ++i)
      others[i] = static_cast<std::int32_t>(i * 7919 % static_cast<std::size_t>(setup.max_tokens));
    const DeviceArray<std::int32_t> on_device(others);
    CacheView stale = twin.device;
    stale.tokens = on_device.data();
    for (const int fewer : {splits, 1}) {
      plan.splits = fewer;
      const std::string how = "scheduled in " + std::to_string(fewer) + " splits";
      const DeviceArray<std::uint8_t> scratch = zeroed_scratch();
      run(how + ", not yet: ", scratch.data());
      cuda::schedule(plan, stale, scratch.data(), kStream);
      run(how + " by other lengths: ", scratch.data());
      cuda::schedule(plan, twin.device, scratch.data(), kStream);
      run(how + ": ", scratch.data());
    }
  }
  note += std::string(plan.instance >= 0 ? "tuned" : "run-time") + " kernel, " +
          std::to_string(splits) + " splits, worst " + std::to_string(worst);
  return failures;
}

Failures check_attend(Setup setup, int tokens, const Queries& queries, std::string& note) {
  setup.max_tokens = tokens;
  setup.step_tokens = queries.tokens;
  Twin twin(setup);
  twin.set_tokens(lengths_of(tokens));
  const auto source = twin.draw(tokens, 6);
  cpu::write_windows(twin.host, source->on_host, kAllTokens, kThreads);
  cpu::encode(twin.host, twin.host_spec, source->on_host, kAllTokens, kThreads);
  twin.copy_to_device();
  return compare_attention(twin, setup, queries, note);
}

/// A prefill, then steps of `step` tokens; one-token steps leave the ring by the flush of two
/// layers.
Failures check_steps(Setup setup, const std::vector<int>& prefill, int steps, int step, bool flush,
                     std::string& note) {
  setup.step_tokens = step;
  setup.batch = static_cast<int>(prefill.size());
  setup.max_tokens = *std::max_element(prefill.begin(), prefill.end()) + steps * step;
  Twin twins[2] = {Twin(setup), Twin(setup)};
  std::vector<cuda::Layer> layers;
  for (Twin& twin : twins) {
    twin.set_tokens(prefill);
    const auto source = twin.draw(setup.max_tokens, 8 + layers.size());
    store(twin, *source, kAllTokens, setup.max_tokens);
    layers.push_back({twin.device, twin.device_spec});
  }
  const DeviceArray<cuda::Layer> on_device(layers);
  const int most = std::max(setup.rule.recent, setup.rule.group) + 8 + step;
  std::vector<int> tokens = prefill;
  Failures failures;
  for (int i = 0; i < steps && failures.empty(); ++i) {
    for (int& count : tokens) count += step;
    for (Twin& twin : twins) {
      cuda::advance(twin.device_tokens(), setup.batch, step, kStream);
      finish();
      std::vector<std::int32_t> advanced(tokens.size());
      demand(cudaMemcpy(advanced.data(), twin.device_tokens(),
                        advanced.size() * sizeof(std::int32_t), cudaMemcpyDeviceToHost),
             "copy from the GPU");
      if (!std::equal(tokens.begin(), tokens.end(), advanced.begin()))
        failures.push_back("advance miscounts");
      twin.set_tokens(tokens);
      const auto source =
          twin.draw(step, 100 + static_cast<std::uint64_t>(i) * 2 + (&twin - twins));
      if (!flush) {
        store(twin, *source, step, step);
        continue;
      }
      cpu::write_windows(twin.host, source->on_host, step, kThreads);
      cpu::encode(twin.host, twin.host_spec, TokenSource{}, step, kThreads);
      cuda::write_windows(twin.device, source->on_device, step, step, kStream);
      finish();
    }
    if (flush) {
      cuda::flush(layers[0], on_device.data(), 2, step, most, kStream);
      finish();
    }
    if (i % 50 != 49 && i + 1 != steps) continue;
    std::string counts;
    for (Twin& twin : twins) {
      const std::string where =
          "layer " + std::to_string(&twin - twins) + ", step " + std::to_string(i);
      append(failures, twin.compare_pools(exact(setup), counts), where);
      append(failures, twin.compare_windows(), where);
      counts += "; ";
    }
    if (i + 1 == steps) note += counts;
  }
  return failures;
}

struct Named {
  std::string name;
  Setup setup;
};

SideFormat side(Axis axis, int group, int bits, Zero zero = Zero::value, Type params = Type::f16) {
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

std::vector<Named> all_setups() {
  std::vector<Named> all = plain_setups();
  for (Named& entry : transformed_setups()) all.push_back(std::move(entry));
  return all;
}

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
