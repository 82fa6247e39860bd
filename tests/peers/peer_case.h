#pragma once

#include <ATen/ATen.h>

#include <set>
#include <string>
#include <vector>

#include "base/h5.h"

namespace peers {

/// One case of a file of peer vectors: attributes and datasets, by the schema of the vectors'
/// README. Remembers what was read, so that nothing goes by unseen.
class Case {
 public:
  Case(const kvlab::h5::File& file, std::string name) : file_(file), name_(std::move(name)) {}

  const std::string& name() const { return name_; }
  std::string method() const { return text("method"); }

  bool has(const std::string& dataset) const { return file_.exists(path(dataset)); }
  /// float32, float64, or int64 for whole numbers.
  at::Tensor tensor(const std::string& dataset) const;
  /// The dataset without its first dimension of 1.
  at::Tensor only(const std::string& dataset) const;

  bool says(const std::string& attribute) const { return file_.has_attribute(group(), attribute); }
  std::string text(const std::string& attribute) const;
  int64_t integer(const std::string& attribute) const;
  double real(const std::string& attribute) const;  // whole numbers too

  /// The dataset that was read last: where a comparison that cannot be made went wrong.
  const std::string& last_read() const { return last_; }

  /// Datasets that nobody asked for.
  std::vector<std::string> unread() const;

 private:
  std::string group() const { return "/" + name_; }
  std::string path(const std::string& dataset) const { return group() + "/" + dataset; }

  const kvlab::h5::File& file_;
  std::string name_;
  mutable std::set<std::string> read_;
  mutable std::string last_;
};

/// What comparing a case found.
class Findings {
 public:
  /// Both must be equal, but for `allowed` elements (a share of all); NaN is equal to NaN.
  void equal(const std::string& what, const at::Tensor& ours, const at::Tensor& theirs,
             double allowed = 0.0);
  /// |ours − theirs| must be at most `tolerance` (broadcast), but for `allowed` elements.
  void close(const std::string& what, const at::Tensor& ours, const at::Tensor& theirs,
             const at::Tensor& tolerance, double allowed = 0.0);
  /// The same with a tolerance relative to the largest |theirs|.
  void near(const std::string& what, const at::Tensor& ours, const at::Tensor& theirs,
            double relative, double allowed = 0.0);
  void that(bool holds, const std::string& what);

  const std::vector<std::string>& failures() const { return failures_; }
  const std::vector<std::string>& compared() const { return compared_; }

 private:
  bool same_shape(const std::string& what, const at::Tensor& ours, const at::Tensor& theirs);
  void judge(const std::string& what, const at::Tensor& wrong, double allowed, double largest);

  std::vector<std::string> failures_, compared_;
};

/// Checks of the methods' cases. Each builds the parts from the case's attributes.
void check_kivi(const Case& vector, Findings& findings);
void check_oscar2(const Case& vector, Findings& findings);
void check_oscar_runtime(const Case& vector, Findings& findings);
void check_oscar_calibration(const Case& vector, Findings& findings);
void check_quarot(const Case& vector, Findings& findings);
void check_optr(const Case& vector, Findings& findings);
void check_kitty(const Case& vector, Findings& findings);
void check_turboquant(const Case& vector, Findings& findings);
void check_rotatekv(const Case& vector, Findings& findings);
void check_kvquant(const Case& vector, Findings& findings);

}  // namespace peers
