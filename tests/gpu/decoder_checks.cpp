#include "decoder_checks.h"

#include <cmath>
#include <random>
#include <utility>

#include "device_memory.h"
#include "kvlab/kernels/decoder.h"
#include "kvlab/kernels/float_bits.h"

namespace kvlab::gpu_check {
namespace {

using namespace kernels;
using Failures = std::vector<std::string>;
using Bits = std::vector<std::uint16_t>;

constexpr float kEps = 1e-6f;

/// Normal numbers, the first of them large, in bf16.
Bits random_bits(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Bits bits(count);
  for (std::uint16_t& one : bits) one = to_bf16(normal(random));
  if (count > 0) bits[0] = to_bf16(97.0f);
  return bits;
}

std::vector<float> random_floats(std::size_t count, unsigned seed) {
  std::vector<float> numbers;
  for (const std::uint16_t bits : random_bits(count, seed)) numbers.push_back(from_bf16(bits));
  return numbers;
}

/// One rounding to bf16 and the last bits of float32 arithmetic.
Failures compare(const std::string& what, const Bits& got, const std::vector<double>& wanted) {
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const double is = from_bf16(got[i]);
    if (std::abs(is - wanted[i]) <= std::abs(wanted[i]) * (1.0 / 256 + 1e-5) + 1e-6) continue;
    return {what + "[" + std::to_string(i) + "] is " + std::to_string(is) + ", not " +
            std::to_string(wanted[i])};
  }
  return {};
}

/// 1 / sqrt(mean of squares + eps) of `width` numbers.
double norm_factor(const std::uint16_t* x, int width) {
  double sum = 0;
  for (int i = 0; i < width; ++i) sum += std::pow(static_cast<double>(from_bf16(x[i])), 2);
  return 1 / std::sqrt(sum / width + kEps);
}

Failures check_norm(int rows, int width) {
  const auto count = static_cast<std::size_t>(rows) * static_cast<std::size_t>(width);
  const Bits x = random_bits(count, 1), weight = random_bits(static_cast<std::size_t>(width), 2);
  const DeviceArray<std::uint16_t> given(x), weights(weight), out(count);
  cuda::rms_norm(given.data(), weights.data(), out.data(), rows, width, kEps, nullptr);
  demand(cudaDeviceSynchronize(), "rms_norm");
  std::vector<double> wanted(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t row = i / static_cast<std::size_t>(width) * static_cast<std::size_t>(width);
    wanted[i] = from_bf16(x[i]) * norm_factor(&x[row], width) * from_bf16(weight[i - row]);
  }
  return compare("out", out.download(), wanted);
}

Failures check_turn(int batch, int q_heads, int kv_heads, int dim) {
  const auto turned = static_cast<std::size_t>(q_heads) + static_cast<std::size_t>(kv_heads);
  const std::size_t all = turned + static_cast<std::size_t>(kv_heads);
  const auto width = static_cast<std::size_t>(dim), sequences = static_cast<std::size_t>(batch);
  const Bits heads = random_bits(sequences * all * width, 3);
  const std::vector<float> weight = random_floats(turned * width, 4);
  std::vector<float> turn;
  for (int i = 0; i < dim / 2; ++i) {
    turn.push_back(std::cos(static_cast<float>(i)));
    turn.push_back(std::sin(static_cast<float>(i)));
  }
  const DeviceArray<std::uint16_t> on_device(heads);
  const DeviceArray<std::uint16_t> query(sequences * static_cast<std::size_t>(q_heads) * width);
  const DeviceArray<float> weights(weight), turns(turn);
  cuda::norm_and_turn(
      {on_device.data(), weights.data(), turns.data(), query.data(), batch, q_heads, kv_heads, dim},
      kEps, nullptr);
  demand(cudaDeviceSynchronize(), "norm_and_turn");
  std::vector<double> queries, rest;
  Bits rest_is;
  const Bits changed = on_device.download();
  for (std::size_t row = 0; row < sequences * all; ++row) {
    const std::size_t head = row % all;
    const std::uint16_t* x = &heads[row * width];
    const double factor = norm_factor(x, dim);
    for (std::size_t i = 0; i < width; ++i) {
      double number = from_bf16(x[i]);
      if (head < turned) {
        const float* w = &weight[head * width + i / 2 * 2];
        const double a = from_bf16(x[i / 2 * 2]) * factor * w[0],
                     b = from_bf16(x[i / 2 * 2 + 1]) * factor * w[1];
        const double c = turn[i / 2 * 2], s = turn[i / 2 * 2 + 1];
        number = i % 2 == 0 ? a * c - b * s : a * s + b * c;
      }
      if (head < static_cast<std::size_t>(q_heads)) {
        queries.push_back(number);
      } else {
        rest.push_back(number);
        rest_is.push_back(changed[row * width + i]);
      }
    }
  }
  Failures failures = compare("query", query.download(), queries);
  for (const std::string& one : compare("keys and values", rest_is, rest)) failures.push_back(one);
  return failures;
}

Failures check_gate(int rows, int width) {
  const auto count = static_cast<std::size_t>(rows) * static_cast<std::size_t>(width);
  const Bits given = random_bits(2 * count, 5);
  const DeviceArray<std::uint16_t> on_device(given), out(count);
  cuda::gate(on_device.data(), out.data(), rows, width, nullptr);
  demand(cudaDeviceSynchronize(), "gate");
  std::vector<double> wanted(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t at =
        i + i / static_cast<std::size_t>(width) * static_cast<std::size_t>(width);
    const double x = from_bf16(given[at]);
    wanted[i] = x / (1 + std::exp(-x)) * from_bf16(given[at + static_cast<std::size_t>(width)]);
  }
  return compare("out", out.download(), wanted);
}

}  // namespace

void add_decoder(std::vector<Case>& all) {
  const auto add = [&](const std::string& name, std::function<Failures()> check) {
    all.push_back(
        {"decoder/" + name, [check = std::move(check)](std::string&) { return check(); }});
  };
  for (const auto& [rows, width] :
       {std::pair{1, 4096}, std::pair{3, 8}, std::pair{5, 576}, std::pair{300, 5000}}) {
    const std::string shape = "/" + std::to_string(rows) + "x" + std::to_string(width);
    add("norm" + shape, [rows, width] { return check_norm(rows, width); });
    add("gate" + shape, [rows, width] { return check_gate(rows, width); });
  }
  for (const int dim : {64, 128, 256}) {
    for (const int batch : {1, 7}) {
      add("turn/d" + std::to_string(dim) + ",batch" + std::to_string(batch),
          [batch, dim] { return check_turn(batch, 9, 3, dim); });
    }
  }
}

}  // namespace kvlab::gpu_check
