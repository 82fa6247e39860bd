#include "transform/hadamard.h"

#include <fmt/format.h>

#include "base/error.h"

namespace kvlab::transform {
namespace {

using Signs = std::vector<int8_t>;

bool is_prime(int64_t n) {
  if (n < 2) return false;
  for (int64_t f = 2; f * f <= n; ++f) {
    if (n % f == 0) return false;
  }
  return true;
}

/// Jacobsthal matrix of a prime q: entry (i, j) is 0, 1 or −1 as i − j is zero, a square or not a
/// square mod q.
Signs jacobsthal(int64_t q) {
  Signs character(static_cast<size_t>(q), -1);
  character[0] = 0;
  for (int64_t i = 1; i < q; ++i) character[static_cast<size_t>(i * i % q)] = 1;
  Signs matrix(static_cast<size_t>(q * q));
  for (int64_t i = 0; i < q; ++i) {
    for (int64_t j = 0; j < q; ++j) {
      matrix[static_cast<size_t>(i * q + j)] = character[static_cast<size_t>((i - j + q) % q)];
    }
  }
  return matrix;
}

/// Conference-like border of the Jacobsthal matrix: [0 1; sign·1 Q], size q + 1.
Signs bordered(int64_t q, int8_t sign) {
  const Signs inner = jacobsthal(q);
  const int64_t n = q + 1;
  Signs matrix(static_cast<size_t>(n * n), 0);
  for (int64_t i = 1; i < n; ++i) {
    matrix[static_cast<size_t>(i)] = 1;
    matrix[static_cast<size_t>(i * n)] = sign;
    for (int64_t j = 1; j < n; ++j) {
      matrix[static_cast<size_t>(i * n + j)] = inner[static_cast<size_t>((i - 1) * q + j - 1)];
    }
  }
  return matrix;
}

/// Paley I, q ≡ 3 mod 4: the skew conference matrix plus the identity, size q + 1.
Signs paley_one(int64_t q) {
  Signs matrix = bordered(q, -1);
  for (int64_t i = 0; i <= q; ++i) matrix[static_cast<size_t>(i * (q + 1) + i)] = 1;
  return matrix;
}

/// Paley II, q ≡ 1 mod 4: every 0 of the symmetric conference matrix becomes [1 −1; −1 −1], every
/// ±1 the same multiple of [1 1; 1 −1]; size 2(q + 1).
Signs paley_two(int64_t q) {
  const Signs conference = bordered(q, 1);
  const int64_t n = q + 1;
  const int64_t size = 2 * n;
  constexpr int8_t zero[2][2] = {{1, -1}, {-1, -1}};
  constexpr int8_t one[2][2] = {{1, 1}, {1, -1}};
  Signs matrix(static_cast<size_t>(size * size));
  for (int64_t i = 0; i < size; ++i) {
    for (int64_t j = 0; j < size; ++j) {
      const int8_t entry = conference[static_cast<size_t>(i / 2 * n + j / 2)];
      const int8_t block = entry == 0 ? zero[i % 2][j % 2] : one[i % 2][j % 2];
      matrix[static_cast<size_t>(i * size + j)] =
          static_cast<int8_t>(entry == 0 ? block : entry * block);
    }
  }
  return matrix;
}

/// Kronecker product with Sylvester's matrix of size 2.
Signs doubled(const Signs& half, int64_t n) {
  const int64_t size = 2 * n;
  Signs matrix(static_cast<size_t>(size * size));
  for (int64_t i = 0; i < size; ++i) {
    for (int64_t j = 0; j < size; ++j) {
      const int8_t value = half[static_cast<size_t>(i % n * n + j % n)];
      matrix[static_cast<size_t>(i * size + j)] =
          static_cast<int8_t>(i >= n && j >= n ? -value : value);
    }
  }
  return matrix;
}

bool has_paley_one(int64_t n) { return n % 4 == 0 && is_prime(n - 1); }
bool has_paley_two(int64_t n) {
  return n % 4 == 0 && n / 2 % 2 == 0 && is_prime(n / 2 - 1) && (n / 2 - 1) % 4 == 1;
}

}  // namespace

bool has_hadamard(int64_t size) {
  if (size < 1) return false;
  if (size == 1 || has_paley_one(size) || has_paley_two(size)) return true;
  return size % 2 == 0 && has_hadamard(size / 2);
}

std::vector<int8_t> hadamard_signs(int64_t size) {
  if (!has_hadamard(size)) {
    throw Unsupported(fmt::format("no Hadamard matrix of size {} can be built here", size));
  }
  if (size == 1) return {1};
  if (size % 2 == 0 && has_hadamard(size / 2)) return doubled(hadamard_signs(size / 2), size / 2);
  return has_paley_one(size) ? paley_one(size - 1) : paley_two(size / 2 - 1);
}

int64_t reverse_bits(int64_t index, int bits) {
  int64_t reversed = 0;
  for (int bit = 0; bit < bits; ++bit) reversed |= (index >> bit & 1) << (bits - 1 - bit);
  return reversed;
}

}  // namespace kvlab::transform
