#include "data/exact_math.h"

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>

namespace kvlab::data {
namespace {

static_assert(FLT_EVAL_METHOD == 0, "double arithmetic must not carry excess precision");

constexpr double kLn2 = 0.69314718055994530942;
constexpr double kTwoPi = 6.28318530717958647692;

/// c[I] + c[I+1]·x + … by Horner's rule. Recursive, so that no loop hinders the vectorizer.
template <int I = 0, int N>
inline double polynomial(const double (&c)[N], double x) {
  if constexpr (I == N - 1) {
    return c[I];
  } else {
    return polynomial<I + 1>(c, x) * x + c[I];
  }
}

// AS 241: numerators and denominators, lowest power first.
constexpr double kCentreTop[] = {3.3871328727963666080e0,  1.3314166789178437745e+2,
                                 1.9715909503065514427e+3, 1.3731693765509461125e+4,
                                 4.5921953931549871457e+4, 6.7265770927008700853e+4,
                                 3.3430575583588128105e+4, 2.5090809287301226727e+3};
constexpr double kCentreBottom[] = {1.0,
                                    4.2313330701600911252e+1,
                                    6.8718700749205790830e+2,
                                    5.3941960214247511077e+3,
                                    2.1213794301586595867e+4,
                                    3.9307895800092710610e+4,
                                    2.8729085735721942674e+4,
                                    5.2264952788528545610e+3};
constexpr double kTailTop[] = {1.42343711074968357734e0,  4.63033784615654529590e0,
                               5.76949722146069140550e0,  3.64784832476320460504e0,
                               1.27045825245236838258e0,  2.41780725177450611770e-1,
                               2.27238449892691845833e-2, 7.74545014278341407640e-4};
constexpr double kTailBottom[] = {1.0,
                                  2.05319162663775882187e0,
                                  1.67638483018380384940e0,
                                  6.89767334985100004550e-1,
                                  1.48103976427480074590e-1,
                                  1.51986665636164571966e-2,
                                  5.47593808499534494600e-4,
                                  1.05075007164441684324e-9};

bool is_centre(double q) { return std::fabs(q) <= 0.425; }

/// inverse_normal(q + ½) near the middle.
double centre(double q) {
  const double r = 0.180625 - q * q;
  return q * polynomial(kCentreTop, r) / polynomial(kCentreBottom, r);
}

/// inverse_normal(p) away from it.
double tail(double p) {
  const double r = std::sqrt(-exact_log(p < 0.5 ? p : 1.0 - p)) - 1.6;
  const double x = polynomial(kTailTop, r) / polynomial(kTailBottom, r);
  return p < 0.5 ? -x : x;
}

}  // namespace

double exact_log(double x) {
  // frexp for a positive, normal x: mantissa in [½, 1).
  const auto bits = std::bit_cast<uint64_t>(x);
  int exponent = static_cast<int>(bits >> 52) - 1022;
  double mantissa = std::bit_cast<double>((bits & 0x000FFFFFFFFFFFFF) | 0x3FE0000000000000);
  if (mantissa < 0.70710678118654752440) {
    mantissa *= 2.0;
    --exponent;
  }
  // log m = 2·artanh(s), |s| < 0.172: eleven odd terms leave 2·s^23/23 < 2e-19.
  const double s = (mantissa - 1.0) / (mantissa + 1.0);
  const double square = s * s;
  double series = 0.0;
  for (int odd = 21; odd >= 1; odd -= 2) series = series * square + 1.0 / odd;
  return exponent * kLn2 + 2.0 * s * series;
}

double exact_exp(double x) {
  const double power = std::floor(x / kLn2 + 0.5);
  const double rest = x - power * kLn2;
  // |rest| < 0.35: the first term left out is rest^16/16! < 3e-21.
  double series = 1.0;
  for (int n = 15; n >= 1; --n) series = 1.0 + rest / n * series;
  return std::ldexp(series, static_cast<int>(power));
}

double exact_cos_turns(double turns) {
  double part = std::fabs(turns - std::floor(turns + 0.5));
  const bool far_side = part > 0.25;
  if (far_side) part = 0.5 - part;
  const double angle = kTwoPi * part;
  const double square = angle * angle;
  // angle ≤ π/2: the first term left out is angle^22/22! < 2e-17.
  double series = 1.0;
  for (int n = 20; n >= 2; n -= 2) series = 1.0 - square / (n * (n - 1)) * series;
  return far_side ? -series : series;
}

double inverse_normal(double p) {
  const double q = p - 0.5;
  return is_centre(q) ? centre(q) : tail(p);
}

void normals_from(const uint32_t* words, int64_t count, double* out) {
  // The centre's formula for all, which the compiler vectorizes, then the tails (15%) again: a
  // branch between the two would be mispredicted too often. Here q + ½ is p to the last bit.
  constexpr int64_t kSome = 64;
  for (int64_t first = 0; first < count; first += kSome) {
    const int64_t here = std::min(kSome, count - first);
    double q[kSome] = {};
    double x[kSome];
    for (int64_t i = 0; i < here; ++i) q[i] = words[first + i];
    for (int64_t i = 0; i < kSome; ++i) {
      q[i] = (q[i] + 0.5) / 4294967296.0 - 0.5;
      x[i] = centre(q[i]);
    }
    int64_t tails[kSome];
    int64_t found = 0;
    for (int64_t i = 0; i < here; ++i) {
      tails[found] = i;
      found += is_centre(q[i]) ? 0 : 1;
    }
    for (int64_t i = 0; i < found; ++i) x[tails[i]] = tail(q[tails[i]] + 0.5);
    std::copy_n(x, here, out + first);
  }
}

}  // namespace kvlab::data
