#include "speed/model_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <numeric>

#include "base/code_version.h"
#include "base/error.h"
#include "base/hash.h"
#include "config/experiment.h"
#include "run/cell.h"
#include "run/provenance.h"
#include "speed/packed_model.h"
#include "speed/torch_cuda/torch_attention.h"
#include "speed/torch_cuda/torch_decoder.h"
#include "speed/torch_module.h"
#include "store/store.h"

namespace kvlab::speed {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::json;

constexpr int kBatchTokens = 4096;  // of a sequence, where the batch varies
constexpr int kSamples = 21;        // of products and of attention alone
constexpr double kSpare = 4e9;      // bytes for activations, graphs and workspaces

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// The value below which a share of the numbers lies: one of them.
double quantile(std::vector<double> numbers, double share) {
  const auto at = static_cast<size_t>(std::ceil(share * static_cast<double>(numbers.size()))) - 1;
  std::nth_element(numbers.begin(), numbers.begin() + static_cast<std::ptrdiff_t>(at),
                   numbers.end());
  return numbers[at];
}

/// Calls a function of the library; what it says went wrong is thrown.
void check(int code) {
  if (code != 0) throw std::runtime_error(KVLAB_TORCH_CUDA(kvlab_torch_error)());
}

std::int64_t free_bytes() {
  std::int64_t free = 0, all = 0;
  check(KVLAB_TORCH_CUDA(kvlab_torch_memory)(&free, &all));
  return free;
}

/// What a case's steps took.
struct Timed {
  std::vector<double> step, attention;  // nanoseconds
  std::int64_t used = 0;                // bytes of the GPU
};

class Bench {
 public:
  explicit Bench(const BenchRequest& request) : request_(request) {
    if (!missing_torch_cuda().empty()) {
      throw Error("bench-model needs libtorch on the GPU: " + missing_torch_cuda());
    }
    std::string why;
    if (!kernels::cuda::available(&why)) throw Error("bench-model needs a GPU: " + why);
    shape_.layers = request.layers;
    check(KVLAB_TORCH_CUDA(kvlab_torch_make_decoder)(&shape_));
  }

  store::CellResult run(BenchCase& one) {
    store::CellResult cell;
    cell.started = run::timestamp();
    cell.code_version = code_version();
    const auto begin = Clock::now();
    try {
      if (one.batch == 0) one.batch = largest_batch(one);
      require_room(one);
      add(one, one.format == "bf16" ? unpacked(one) : packed(one), cell);
      cell.status = "complete";
    } catch (const Unsupported& error) {
      cell.status = "unsupported";
      cell.reason = error.what();
    } catch (const std::exception& error) {
      cell.status = "failed";
      cell.reason = error.what();
    }
    cell.seconds = seconds_since(begin);
    return cell;
  }

 private:
  CacheShape cache_shape(const BenchCase& one) const {
    CacheShape shape;
    shape.format = kernels::format_named(one.format, shape_.dim);
    shape.layers = shape_.layers;
    shape.batch = one.batch;
    shape.q_heads = shape_.q_heads;
    shape.kv_heads = shape_.kv_heads;
    shape.tokens = one.tokens;
    return shape;
  }

  double unpacked_bytes(const BenchCase& one) const {
    return 4.0 * shape_.layers * one.batch * shape_.kv_heads * shape_.dim * one.tokens;
  }
  double held_bytes(const BenchCase& one) const {
    return one.format == "bf16" ? unpacked_bytes(one) : PackedModel::bytes(cache_shape(one));
  }
  double billed_bytes(const BenchCase& one) const {
    return one.format == "bf16" ? unpacked_bytes(one) : PackedModel::billed_bytes(cache_shape(one));
  }

  int largest_batch(BenchCase one) const {
    one.batch = 1;
    return std::max(
        1, static_cast<int>((static_cast<double>(free_bytes()) - kSpare) / held_bytes(one)));
  }

  void require_room(const BenchCase& one) const {
    const auto free = static_cast<double>(free_bytes());
    const double wanted = held_bytes(one) + kSpare;
    if (wanted > free) {
      throw Unsupported(fmt::format("needs {:.1f} GB beside the weights, {:.1f} GB are free",
                                    wanted * 1e-9, free * 1e-9));
    }
  }

  Timed unpacked(const BenchCase& one) const {
    Timed timed;
    timed.step.resize(static_cast<size_t>(request_.steps));
    timed.attention.resize(kSamples);
    check(KVLAB_TORCH_CUDA(kvlab_torch_time_unpacked)(one.backend.c_str(), one.batch, one.tokens,
                                                      request_.steps, timed.step.data(),
                                                      &timed.used));
    check(KVLAB_TORCH_CUDA(kvlab_torch_time_attention)(one.backend.c_str(), one.batch, one.tokens,
                                                       kSamples, timed.attention.data()));
    return timed;
  }

  Timed packed(const BenchCase& one) const {
    const CacheShape shape = cache_shape(one);
    const int held = one.tokens - request_.steps - kvlab_torch_warm_steps;
    if (held < 1) {
      throw Unsupported(fmt::format("{} tokens are not more than the {} steps timed", one.tokens,
                                    request_.steps));
    }
    const std::int64_t tokens = std::int64_t{2} * held * shape_.dim;
    const std::int64_t queries = std::int64_t{one.batch} * shape_.q_heads * shape_.dim;
    const void* normals = nullptr;
    check(KVLAB_TORCH_CUDA(kvlab_torch_normal)(std::max(tokens, queries), &normals));
    PackedModel model(shape, held, normals);
    const KvlabStepCache cache = {&model,
                                  [](void* context, void* stream) {
                                    static_cast<const PackedModel*>(context)->begin(
                                        static_cast<kernels::cuda::Stream>(stream));
                                  },
                                  [](void* context, const KvlabLayerStep* layer) {
                                    static_cast<const PackedModel*>(context)->attend(
                                        layer->layer, layer->query, layer->key, layer->value,
                                        layer->stride, layer->output,
                                        static_cast<kernels::cuda::Stream>(layer->stream));
                                  }};
    Timed timed;
    timed.step.resize(static_cast<size_t>(request_.steps));
    check(KVLAB_TORCH_CUDA(kvlab_torch_time_steps)(&cache, one.batch, request_.steps,
                                                   timed.step.data(), &timed.used));
    timed.attention = model.time_attention(normals, kSamples);
    check(KVLAB_TORCH_CUDA(kvlab_torch_normal)(0, nullptr));
    return timed;
  }

  const std::vector<double>& products(int batch) {
    std::vector<double>& samples = products_[batch];
    if (samples.empty()) {
      samples.resize(kSamples);
      check(KVLAB_TORCH_CUDA(kvlab_torch_time_products)(batch, kSamples, samples.data()));
    }
    return samples;
  }

  void add(const BenchCase& one, const Timed& timed, store::CellResult& cell) {
    const auto keep = [&](const char* name, const std::vector<double>& samples) {
      cell.samples[name] = {{static_cast<int64_t>(samples.size())}, samples};
      cell.scalars[name] = quantile(samples, 0.5) / 1e3;
    };
    keep("step_us", timed.step);
    keep("attention_us", timed.attention);
    keep("products_us", products(one.batch));
    cell.scalars["step_p99_us"] = quantile(timed.step, 0.99) / 1e3;
    cell.scalars["step_longest_us"] = quantile(timed.step, 1) / 1e3;
    const double total = std::accumulate(timed.step.begin(), timed.step.end(), 0.0);
    cell.scalars["tokens_per_second"] =
        1e9 * one.batch * static_cast<double>(timed.step.size()) / total;
    cell.scalars["cache_bytes"] = held_bytes(one);
    cell.scalars["billed_bytes"] = billed_bytes(one);
    cell.scalars["used_bytes"] = static_cast<double>(timed.used);
    for (const auto& [name, value] : cell.scalars) cell.metrics[name] = {{}, {value}};
  }

  const BenchRequest& request_;
  KvlabDecoderShape shape_{.layers = 36,
                           .hidden = 4096,
                           .intermediate = 12288,
                           .vocabulary = 151936,
                           .q_heads = 32,
                           .kv_heads = 8,
                           .dim = 128};
  std::map<int, std::vector<double>> products_;  // by batch
};

/// "step/backend:cuda/format:f1/batch:48/tokens:4096".
std::string name_of(const BenchCase& one, bool is_largest) {
  return fmt::format("step/backend:{}/format:{}/batch:{}/tokens:{}", one.backend, one.format,
                     is_largest ? "largest" : std::to_string(one.batch), one.tokens);
}

store::Results empty_file() {
  config::Experiment experiment;
  experiment.name = "bench_model";
  run::Options options;
  options.argv = run::command_line();
  store::Results results;
  results.attributes = run::provenance(experiment, options);
  results.attributes.erase("backend");
  results.attributes.erase("experiment_file");
  results.attributes["model"] = "Qwen3-8B's shape, random bf16 weights";
  results.experiment_source = results.experiment_resolved = "name: bench_model\n";
  results.axes = {"batch", "tokens", "case"};
  return results;
}

void add_row(const BenchCase& one, bool is_largest, store::CellResult cell,
             store::Results& results) {
  const std::string name = name_of(one, is_largest);
  cell.id = sha256(name).substr(0, 16);
  cell.config = json{{"benchmark", name}, {"batch", one.batch}}.dump();
  store::SummaryRow row;
  row.row = static_cast<int64_t>(results.rows.size());
  row.cell = cell.id;
  row.method = one.format;
  row.label = one.backend + " " + one.format;
  row.dataset = "normal";
  row.backend = one.backend;
  row.layer = -1;
  row.sweep = {one.batch, one.tokens, is_largest ? "largest batch" : ""};
  results.rows.push_back(row);
  results.cells[cell.id] = std::move(cell);
}

std::string line_of(const BenchCase& one, const store::CellResult& cell) {
  const std::string name = fmt::format("{:11} {:4}  batch {:4}  tokens {:6}", one.backend,
                                       one.format, one.batch, one.tokens);
  if (cell.status != "complete") return fmt::format("{}  {}: {}", name, cell.status, cell.reason);
  const auto ms = [&](const char* metric) { return cell.scalars.at(metric) * 1e-3; };
  return fmt::format(
      "{}  {:7.3f} ms a step (p99 {:.3f}, longest {:.3f}; products {:.3f}, attention {:.3f})  "
      "{:.0f} tokens/s  cache {:.2f} GB",
      name, ms("step_us"), ms("step_p99_us"), ms("step_longest_us"), ms("products_us"),
      ms("attention_us"), cell.scalars.at("tokens_per_second"),
      cell.scalars.at("cache_bytes") * 1e-9);
}

}  // namespace

std::vector<BenchCase> cases_of(const BenchRequest& request) {
  std::vector<BenchCase> cases;
  const auto add = [&](int batch, int tokens) {
    for (const std::string& format : request.formats) {
      if (format == "bf16") {
        cases.push_back({"torch_cudnn", format, batch, tokens});
        cases.push_back({"torch_flash", format, batch, tokens});
      } else {
        cases.push_back({"cuda", format, batch, tokens});
      }
    }
  };
  // The papers' batch first, then the ends of each sweep: a run that is cut short has them.
  std::vector<int> batches = request.batches;
  std::stable_partition(batches.begin(), batches.end(), [](int batch) { return batch == 48; });
  std::vector<int> contexts = request.contexts;
  std::reverse(contexts.begin(), contexts.end());
  if (!batches.empty()) add(batches.front(), kBatchTokens);
  for (const int tokens : contexts) {
    if (tokens != kBatchTokens || batches.empty()) add(1, tokens);
  }
  for (size_t i = batches.size(); i-- > 1;) add(batches[i], kBatchTokens);
  if (request.largest) add(0, kBatchTokens);
  return cases;
}

int run_bench(const BenchRequest& request, const std::filesystem::path& out,
              const std::function<void(const std::string& line)>& report) {
  constexpr double kMostLost = 5;  // seconds between writes
  const auto begin = Clock::now();
  Bench bench(request);
  const store::RunLock lock(out);
  store::Results results = empty_file();
  store::write_results(out, results);
  auto written = Clock::now();
  int failed = 0;
  for (BenchCase one : cases_of(request)) {
    const bool is_largest = one.batch == 0;
    store::CellResult cell;
    if (request.seconds > 0 && seconds_since(begin) > request.seconds) {
      cell.status = "interrupted";
      cell.reason = fmt::format("the limit of {} s was reached", request.seconds);
    } else {
      cell = bench.run(one);
    }
    failed += cell.status == "failed" ? 1 : 0;
    report(fmt::format("{:6.1f} s  {}", seconds_since(begin), line_of(one, cell)));
    add_row(one, is_largest, std::move(cell), results);
    if (seconds_since(written) > kMostLost) {
      store::write_results(out, results);
      written = Clock::now();
    }
  }
  store::write_results(out, results);
  return failed;
}

}  // namespace kvlab::speed
