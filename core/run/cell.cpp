#include "run/cell.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <new>

#include "base/code_version.h"
#include "base/error.h"
#include "base/utf8.h"
#include "metrics/evaluate.h"
#include "run/model_cell.h"
#include "run/torch_error.h"

namespace kvlab::run {
namespace {

void keep_tensors(const calibrate::PreparedSide& side, const std::string& name,
                  store::CellResult& result) {
  if (side.stored_rotation.defined()) result.rotation[name] = array_of(side.stored_rotation);
  if (side.transform.center().defined()) result.center[name] = array_of(side.transform.center());
}

/// Metrics that cannot be told, of data that are finite, because of what was calibrated.
/// `nonfinite` is zero otherwise; outputs exist for every probe.
void require_metrics(const config::Cell& cell, const store::CellResult& result) {
  const bool learned = !cell.calibration.empty() || method::rotation_file(cell.recipe, "key") ||
                       method::rotation_file(cell.recipe, "value");
  if (!learned || cell.dataset.allow_nonfinite) return;
  const auto fails = [&](const char* name, const auto& wrong) {
    const auto found = result.scalars.find(name);
    if (found == result.scalars.end() || !wrong(found->second)) return;
    throw Error(
        fmt::format("{} is {}: the calibration set makes the method decode values that are "
                    "NaN or infinite",
                    name, found->second));
  };
  fails("nonfinite", [](double count) { return count > 0; });
  for (const char* name : {"logit_mse", "attn_kl", "out_rel"}) {
    fails(name, [](double value) { return std::isnan(value); });
  }
}

void measure_sample(const config::Cell& cell, Samples& samples,
                    calibrate::CalibrationStore& calibrations, const calibrate::Progress& progress,
                    store::CellResult& result) {
  const Samples::Loaded loaded = samples.get(cell);
  result.warnings.insert(result.warnings.end(), loaded.warnings.begin(), loaded.warnings.end());
  const data::Sample& sample = loaded.context->sample();
  result.tokens_total = sample.tokens();

  const calibrate::Prepared prepared =
      calibrate::prepare(cell.recipe, sample.kv_heads(), sample.head_dim(), cell.layer, cell.seed,
                         calibration_of(cell, cell.layer, samples), calibrations, progress);
  result.warnings.insert(result.warnings.end(), prepared.notes.begin(), prepared.notes.end());

  const metrics::Measured measured =
      metrics::evaluate(*loaded.context, prepared, cell.recipe,
                        {cell.measure.begin(), cell.measure.end()}, cell.backend);
  result.warnings.insert(result.warnings.end(), measured.notes.begin(), measured.notes.end());
  for (const auto& [name, tensor] : measured.metrics) {
    result.metrics[name] = array_of(tensor);
    result.scalars[name] = metrics::scalar_of(name, tensor);
  }
  require_metrics(cell, result);
  for (const auto& [name, tensor] : measured.blocks) result.blocks[name] = array_of(tensor);
  for (const auto& [name, tensor] : measured.samples) result.samples[name] = array_of(tensor);
  for (const auto& [name, tensor] : measured.tokens) result.tokens[name] = array_of(tensor);
  for (const auto& [name, values] : prepared.records) {
    result.learning[name] = {{static_cast<int64_t>(values.size())}, values};
  }
  keep_tensors(prepared.key, "key", result);
  keep_tensors(prepared.value, "value", result);
  std::copy_n(measured.hist_key, 2, result.hist_key);
  std::copy_n(measured.hist_value, 2, result.hist_value);
}

}  // namespace

store::Array array_of(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.to(at::kDouble).contiguous();
  return {flat.sizes().vec(),
          {flat.const_data_ptr<double>(), flat.const_data_ptr<double>() + flat.numel()}};
}

std::optional<calibrate::CalibrationSample> calibration_of(const config::Cell& cell, int64_t layer,
                                                           Samples& samples) {
  if (cell.calibration.empty()) return std::nullopt;
  return calibrate::CalibrationSample{
      .load = [&cell, &samples, layer] { return samples.calibration(cell, layer); },
      .content = cell.config["calibration"]["sha256"].get<std::string>() +
                 (cell.config["calibration"].contains("stretch")
                      ? cell.config["calibration"]["stretch"].dump()
                      : "")};
}

std::string timestamp() {
  const auto now =
      std::chrono::time_point_cast<std::chrono::seconds>(std::chrono::system_clock::now());
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}",
                     fmt::gmtime(std::chrono::system_clock::to_time_t(now)));
}

store::CellResult not_run(const config::Cell& cell, const std::string& status,
                          const std::string& reason) {
  store::CellResult result;
  result.id = cell.id;
  result.config = json_text(cell.config);
  result.status = status;
  result.reason = reason;
  result.started = timestamp();
  result.code_version = code_version();
  result.warnings = cell.warnings;
  return result;
}

store::CellResult compute(const config::Cell& cell, Inputs& inputs,
                          const calibrate::Progress& progress) {
  store::CellResult result = not_run(cell, "complete", "");
  const auto begin = std::chrono::steady_clock::now();
  const auto fail = [&](const char* status, const std::string& reason) {
    result.status = status;
    result.reason = reason;
    result.metrics.clear();
    result.scalars.clear();
    result.blocks.clear();
    result.tokens.clear();
    result.samples.clear();
  };
  try {
    if (cell.dataset.model) {
      measure_model(cell, inputs, progress, result);
    } else {
      measure_sample(cell, inputs.samples, inputs.calibrations, progress, result);
    }
  } catch (const Unsupported& error) {
    fail("unsupported", error.what());
  } catch (const std::bad_alloc&) {
    fail("failed", "out of memory");
  } catch (const c10::Error& error) {
    fail("failed", sentence(error));
  } catch (const std::exception& error) {
    fail("failed", error.what());
  }
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return result;
}

}  // namespace kvlab::run
