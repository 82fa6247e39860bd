#include "peers/peer_case.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <stdexcept>

namespace peers {

using kvlab::h5::Element;

at::Tensor Case::only(const std::string& dataset) const {
  const at::Tensor all = tensor(dataset);
  if (all.dim() < 2 || all.size(0) != 1) {
    throw std::runtime_error(fmt::format("{} has shape [{}], expected a first dimension of 1",
                                         dataset, fmt::join(all.sizes().vec(), ", ")));
  }
  return all.squeeze(0);
}

at::Tensor Case::tensor(const std::string& dataset) const {
  read_.insert(dataset);
  last_ = dataset;
  const kvlab::h5::Info info = file_.info(path(dataset));
  if (info.element.kind != Element::Kind::real) {
    return at::tensor(file_.read<int64_t>(path(dataset)), at::kLong).reshape(info.shape);
  }
  if (info.element.bytes == 8) {
    return at::tensor(file_.read<double>(path(dataset)), at::kDouble).reshape(info.shape);
  }
  return at::tensor(file_.read<float>(path(dataset)), at::kFloat).reshape(info.shape);
}

std::string Case::text(const std::string& attribute) const {
  return file_.attribute<std::string>(group(), attribute);
}

int64_t Case::integer(const std::string& attribute) const {
  return file_.attribute<int64_t>(group(), attribute);
}

double Case::real(const std::string& attribute) const {
  const bool whole = file_.attribute_info(group(), attribute).element.kind != Element::Kind::real;
  return whole ? static_cast<double>(integer(attribute))
               : file_.attribute<double>(group(), attribute);
}

std::vector<std::string> Case::unread() const {
  std::vector<std::string> names;
  for (const std::string& name : file_.children(group())) {
    if (read_.count(name) == 0) names.push_back(name);
  }
  return names;
}

bool Findings::same_shape(const std::string& what, const at::Tensor& ours,
                          const at::Tensor& theirs) {
  if (ours.sizes() == theirs.sizes()) return true;
  failures_.push_back(
      fmt::format("{}: {} elements in another shape than {}", what, ours.numel(), theirs.numel()));
  return false;
}

void Findings::judge(const std::string& what, const at::Tensor& wrong, double allowed,
                     double largest) {
  const auto count = wrong.sum().item<int64_t>();
  const auto all = wrong.numel();
  compared_.push_back(
      fmt::format("{}: {} of {} differ, largest difference {:.3g}", what, count, all, largest));
  if (static_cast<double>(count) > allowed * static_cast<double>(all)) {
    failures_.push_back(compared_.back());
  }
}

void Findings::equal(const std::string& what, const at::Tensor& ours, const at::Tensor& theirs,
                     double allowed) {
  if (!same_shape(what, ours, theirs)) return;
  const at::Tensor a = ours.to(at::kDouble), b = theirs.to(at::kDouble);
  const at::Tensor both_nan = a.isnan().logical_and_(b.isnan());
  const at::Tensor gap = (a - b).abs().masked_fill(both_nan, 0.0);
  judge(what, gap.eq(0).logical_not(), allowed, gap.numel() > 0 ? gap.max().item<double>() : 0.0);
}

void Findings::close(const std::string& what, const at::Tensor& ours, const at::Tensor& theirs,
                     const at::Tensor& tolerance, double allowed) {
  if (!same_shape(what, ours, theirs)) return;
  const at::Tensor gap = (ours.to(at::kDouble) - theirs.to(at::kDouble)).abs();
  judge(what, gap.le(tolerance.to(at::kDouble)).logical_not(), allowed,
        gap.numel() > 0 ? gap.max().item<double>() : 0.0);
}

void Findings::near(const std::string& what, const at::Tensor& ours, const at::Tensor& theirs,
                    double relative, double allowed) {
  const at::Tensor largest =
      theirs.numel() > 0 ? theirs.to(at::kDouble).abs().max() : at::zeros({}, at::kDouble);
  close(what, ours, theirs, largest * relative, allowed);
}

void Findings::that(bool holds, const std::string& what) {
  compared_.push_back(what);
  if (!holds) failures_.push_back(what);
}

}  // namespace peers
