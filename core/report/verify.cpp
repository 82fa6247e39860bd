#include "report/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "base/error.h"
#include "base/h5.h"
#include "base/names.h"
#include "base/schemas.h"
#include "store/store.h"

namespace kvlab::report {
namespace {

using h5::Element;
using Sizes = std::vector<int64_t>;

int64_t product(const Sizes& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
}

/// Calls visit(start, count) for blocks of at most about a million elements that cover the shape.
template <class Visit>
void for_each_block(const Sizes& shape, Visit visit) {
  constexpr int64_t kMost = int64_t{1} << 20;
  if (product(shape) == 0) return;
  Sizes block = shape;
  for (size_t i = 0; i < shape.size() && product(block) > kMost; ++i) {
    const int64_t rest = product(block) / block[i];
    block[i] = std::max<int64_t>(1, kMost / rest);
  }
  Sizes start(shape.size(), 0);
  while (true) {
    Sizes count(shape.size());
    for (size_t i = 0; i < shape.size(); ++i) count[i] = std::min(block[i], shape[i] - start[i]);
    visit(start, count);
    size_t i = shape.size();
    while (i > 0) {
      --i;
      start[i] += block[i];
      if (start[i] < shape[i]) break;
      start[i] = 0;
      if (i == 0) return;
    }
    if (shape.empty()) return;
  }
}

struct Counts {
  int64_t nan = 0, infinite = 0;
  void add(double value) {
    if (std::isnan(value)) ++nan;
    if (std::isinf(value)) ++infinite;
  }
};

void add_bfloat16(uint16_t bits, Counts* counts) {
  constexpr uint16_t kExponent = 0x7F80, kMantissa = 0x007F;
  if ((bits & kExponent) != kExponent) return;
  ++((bits & kMantissa) != 0 ? counts->nan : counts->infinite);
}

/// Reads a whole dataset.
Counts count_nonfinite(const h5::File& file, const std::string& path, const DatasetInfo& dataset) {
  Counts counts;
  const Element element = file.info(path).element;
  if (element.kind == Element::Kind::text) {
    file.read_texts(path);
    return counts;
  }
  for_each_block(dataset.shape, [&](const Sizes& start, const Sizes& count) {
    const auto size = static_cast<size_t>(product(count));
    if (dataset.type == "bfloat16") {
      std::vector<uint16_t> values(size);
      file.read_slice(path, start, count, values.data());
      for (const uint16_t value : values) add_bfloat16(value, &counts);
    } else if (element.kind == Element::Kind::real) {
      std::vector<double> values(size);
      file.read_slice(path, start, count, values.data());
      for (const double value : values) counts.add(value);
    } else {
      std::vector<char> bytes(size * element.bytes);
      file.read_slice_raw(path, start, count, bytes.data());
    }
  });
  return counts;
}

/// max |RᵀR − 1| of a rotation [H, d, d].
double orthogonality_error(const std::vector<double>& values, int64_t d) {
  double worst = 0;
  const int64_t matrix = d * d;
  for (size_t head = 0; head + matrix <= values.size(); head += matrix) {
    std::vector<double> gram(static_cast<size_t>(matrix), 0.0);
    for (int64_t row = 0; row < d; ++row) {
      const double* r = values.data() + head + row * d;
      for (int64_t i = 0; i < d; ++i) {
        for (int64_t j = 0; j < d; ++j) gram[i * d + j] += r[i] * r[j];
      }
    }
    for (int64_t i = 0; i < matrix; ++i) {
      const double error = std::abs(gram[i] - (i / d == i % d ? 1.0 : 0.0));
      if (!(error <= worst)) worst = error;
    }
  }
  return worst;
}

void check_rotation(const h5::File& file, const std::string& path, const DatasetInfo& dataset,
                    Inspection* inspection) {
  constexpr double kTolerance = 1e-3;
  const Sizes& shape = dataset.shape;
  if (shape.size() != 3 || shape[1] != shape[2] || product(shape) == 0) {
    inspection->problems.push_back(path + ": expected a rotation [H or 1, d, d]");
    return;
  }
  const double error = orthogonality_error(file.read<double>(path), shape[1]);
  if (!(error <= kTolerance)) {
    inspection->problems.push_back(
        fmt::format("{}: not orthogonal, RᵀR differs from 1 by {:.2g}", path, error));
  }
}

void verify_values(const h5::File& file, Inspection* inspection) {
  const bool is_rotation = inspection->schema.starts_with("kvlab.rotation/");
  for (const GroupInfo& like : inspection->groups) {
    for (const std::string& group : like.groups) {
      for (const DatasetInfo& dataset : like.datasets) {
        const std::string path = (group == "/" ? "/" : group + "/") + dataset.name;
        try {
          const Counts counts = count_nonfinite(file, path, dataset);
          inspection->checked_values += product(dataset.shape);
          if (counts.nan + counts.infinite > 0) {
            inspection->problems.push_back(fmt::format("{}: {} NaN and {} infinite values", path,
                                                       counts.nan, counts.infinite));
          }
          if (is_rotation && dataset.name.ends_with("rotation")) {
            check_rotation(file, path, dataset, inspection);
          }
        } catch (const Error& error) {
          inspection->problems.emplace_back(error.what());
        }
      }
    }
  }
}

void verify_cells(const h5::File& file, Inspection* inspection) {
  const store::Verification found = store::verify_results(inspection->file);
  inspection->checked_values = found.checked;
  inspection->problems.insert(inspection->problems.end(), found.problems.begin(),
                              found.problems.end());
  if (!file.exists("/summary/cell") || !file.exists("/cells")) return;
  const std::vector<std::string> ids = file.children("/cells");
  const std::set<std::string> known(ids.begin(), ids.end());
  std::set<std::string> missing;
  for (const std::string& id : file.read_texts("/summary/cell")) {
    if (!known.contains(id)) missing.insert(id);
  }
  for (const std::string& id : missing) {
    inspection->problems.push_back(fmt::format("/summary: cell {} is not in /cells", id));
  }
}

}  // namespace

void verify(Inspection* inspection) {
  static const std::vector<std::string> schemas = {kCaptureSchema, kRotationSchema, kResultsSchema,
                                                   kTokensSchema, kNeedlesSchema};
  inspection->is_verified = true;
  // Arrays of a wrong shape may be of any size.
  const bool is_sound = inspection->problems.empty();
  if (std::find(schemas.begin(), schemas.end(), inspection->schema) == schemas.end()) {
    inspection->problems.push_back(
        fmt::format("{}: schema '{}' is none that this program knows ({})", inspection->file,
                    inspection->schema, join(schemas)));
  }
  const h5::File file = h5::File::open(inspection->file);
  if (inspection->schema == kResultsSchema) {
    verify_cells(file, inspection);
  } else if (is_sound) {
    verify_values(file, inspection);
    if (inspection->checked_values == 0 && inspection->problems.empty()) {
      inspection->problems.push_back(inspection->file + ": holds no values");
    }
  }
}

}  // namespace kvlab::report
