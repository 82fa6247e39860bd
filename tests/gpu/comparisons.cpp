#include "comparisons.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace kvlab::gpu_check {
namespace {

constexpr int kThreads = 2;
constexpr cuda::Stream kStream = nullptr;

void append(Failures& all, const Failures& more, const std::string& where) {
  for (const std::string& sentence : more) all.push_back(where + ": " + sentence);
}

/// Waits for the GPU, so that a fault is reported where it happened.
void finish() { demand(cudaDeviceSynchronize(), "a kernel"); }

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

}  // namespace

std::vector<int> many_lengths(int tokens) {
  std::vector<int> lengths;
  for (int i = 0; i < 150; ++i) lengths.push_back(i % 7 == 3 ? 0 : 1 + i * 37 % tokens);
  return lengths;
}

namespace {

bool exact(const Setup& setup) {
  return setup.key_rotation == Rotation::Kind::none && setup.value_rotation == Rotation::Kind::none;
}

/// Fills both caches with what the CPU makes of three sequences (lengths_of).
void prefill(Twin& twin, int tokens, std::uint64_t seed) {
  twin.set_tokens(lengths_of(tokens));
  const auto source = twin.draw(tokens, seed);
  cpu::write_windows(twin.host, source->on_host, kAllTokens, kThreads);
  cpu::encode(twin.host, twin.host_spec, source->on_host, kAllTokens, kThreads);
  twin.copy_to_device();
}

}  // namespace

Failures check_encode(Setup setup, int tokens, std::string& note, std::vector<int> lengths) {
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

Failures check_dequantize(Setup setup, int tokens, bool undo, std::string& note) {
  setup.max_tokens = tokens;
  Twin twin(setup);
  prefill(twin, tokens, 4);
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

namespace {

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
    const DeviceArray<std::int32_t> equal(
        std::vector<std::int32_t>(static_cast<std::size_t>(setup.batch), setup.max_tokens));
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
      // Equal lengths may need no schedule: then none may be left of the one before.
      stale.tokens = equal.data();
      cuda::schedule(plan, stale, scratch.data(), kStream);
      run(how + " by equal lengths: ", scratch.data());
      stale.tokens = on_device.data();
    }
  }
  note += std::string(plan.instance >= 0 ? "tuned" : "run-time") + " kernel, " +
          std::to_string(splits) + " splits, worst " + std::to_string(worst);
  return failures;
}

}  // namespace

Failures check_attend(Setup setup, int tokens, const Queries& queries, std::string& note) {
  setup.max_tokens = tokens;
  setup.step_tokens = queries.tokens;
  Twin twin(setup);
  prefill(twin, tokens, 6);
  return compare_attention(twin, setup, queries, note);
}

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

}  // namespace kvlab::gpu_check
