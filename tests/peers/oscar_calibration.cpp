// OSCAR's calibration: covariances, eigenvectors, and the orders in which rotations are composed.
#include <sstream>

#include "calibrate/covariance.h"
#include "peers/parts.h"
#include "transform/parts.h"

namespace peers {
namespace {

using namespace kvlab;

/// [T, heads, d] to [1, heads, T, d].
at::Tensor as_captured(const at::Tensor& x) { return x.transpose(0, 1).unsqueeze(0).contiguous(); }

void compare(const Case& vector, Findings& findings, const std::string& name,
             const at::Tensor& covariance, const std::string& side) {
  const at::Tensor stored = vector.tensor("C_" + name);
  findings.near("C_" + name, covariance, stored, 1e-10);
  const at::Tensor values = at::linalg_eigvalsh(covariance);
  const at::Tensor stored_values = vector.tensor("eig_" + name);
  findings.near("eigenvalues " + name, values, stored_values, 1e-10);

  // Signs are free: |UᵀU_ref| is the identity for eigenvalues that lie well apart.
  const at::Tensor u = vector.tensor("U_" + name);
  const at::Tensor overlap = calibrate::eigenvectors(covariance).t().matmul(u).abs();
  const at::Tensor gap = stored_values.diff();
  const at::Tensor far = at::full({1}, 1e30, at::kDouble);
  const at::Tensor least = at::minimum(at::cat({far, gap}), at::cat({gap, far}));
  const at::Tensor apart = least.gt(1e-6 * stored_values.abs().max());
  findings.that(apart.sum().item<int64_t>() * 2 > apart.size(0), "most eigenvalues lie apart");
  findings.close("eigenvectors " + name, overlap.diagonal().masked_select(apart),
                 at::ones_like(u.diagonal()).masked_select(apart), at::full({}, 1e-8, at::kDouble));

  std::istringstream names(vector.text("compositions"));
  std::string composition;
  const bool one = vector.text("compositions").find(',') == std::string::npos;
  while (std::getline(names, composition, ',')) {
    const at::Tensor ours = calibrate::compose_rotation(u, transform::factors_of(composition));
    if (composition == vector.text("composition")) {
      findings.close("R_" + side, ours, vector.tensor("R_" + side), at::full({}, 1e-6));
    }
    const std::string dataset = "R_" + side + "_" + composition;
    if (one || !vector.has(dataset)) continue;
    findings.close(dataset, ours, vector.tensor(dataset), at::full({}, 1e-6));
  }
}

}  // namespace

void check_oscar_calibration(const Case& vector, Findings& findings) {
  data::Sample sample;
  sample.q = as_captured(vector.tensor("Q"));
  sample.k = as_captured(vector.tensor("K"));
  sample.v = as_captured(vector.tensor("V"));
  sample.positions = at::arange(sample.tokens(), at::kLong);
  findings.that(sample.group() == vector.integer("gqa"), "query heads a KV head");
  const at::Tensor query = calibrate::query_covariance(sample);
  const at::Tensor value = calibrate::proxy_covariance(sample, query);
  compare(vector, findings, "Q", query.mean(0), "K");
  compare(vector, findings, "S", value.mean(0), "V");
}

}  // namespace peers
