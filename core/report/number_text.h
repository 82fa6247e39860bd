#pragma once

#include <string>

namespace kvlab::report {

/// Four significant digits for people: "0.01235", "2.250", "123456", "1.234e-05", "inf"; a dash for
/// NaN.
std::string short_number(double value);

/// Two significant digits, for what stands behind ±.
std::string two_digits(double value);

/// The shortest text that reads back as the same number; empty for NaN.
std::string exact_number(double value);

}  // namespace kvlab::report
