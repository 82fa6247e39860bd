#include "random_numbers.h"

#include <numeric>
#include <random>

#include "kvlab/kernels/float_bits.h"

namespace kvlab::bench {

std::vector<std::int32_t> permutation(int count) {
  std::vector<std::int32_t> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  std::minstd_rand engine(5);
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[engine() % i]);
  return order;
}

std::vector<std::uint16_t> normals(std::int64_t count, unsigned seed) {
  std::minstd_rand engine(seed);
  std::normal_distribution<float> normal;
  std::vector<std::uint16_t> numbers(static_cast<size_t>(count));
  for (std::uint16_t& number : numbers) number = kernels::to_bf16(normal(engine));
  return numbers;
}

std::vector<float> random_rotation(int dim) {
  // A product of reflections.
  constexpr int kReflections = 8;
  const auto d = static_cast<size_t>(dim);
  std::vector<double> matrix(d * d, 0.0);
  for (size_t i = 0; i < d; ++i) matrix[i * d + i] = 1;
  std::minstd_rand engine(6);
  std::normal_distribution<double> normal;
  std::vector<double> mirror(d);
  for (int reflection = 0; reflection < kReflections; ++reflection) {
    double square = 0;
    for (double& x : mirror) {
      x = normal(engine);
      square += x * x;
    }
    for (size_t row = 0; row < d; ++row) {
      double* numbers = matrix.data() + row * d;
      const double along = std::inner_product(mirror.begin(), mirror.end(), numbers, 0.0);
      for (size_t i = 0; i < d; ++i) numbers[i] -= 2 * along / square * mirror[i];
    }
  }
  return {matrix.begin(), matrix.end()};
}

}  // namespace kvlab::bench
