// Eigenvectors, and the loss of a low-rank approximation.

#include "kernels/dense/low_rank.h"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "tests/unit/kernels/floats.h"
#include "tests/unit/kernels/random_rows.h"

using namespace kvtwin;
using namespace kvtwin::kernels;
using namespace kvtwin::testing;

TEST_CASE("low rank: eigenvectors are orthonormal and diagonalise, and the eigenvalues descend") {
  for (const uint32_t n : {1u, 2u, 7u, 40u}) {
    const std::vector<float> rows = random_rows(n, size_t{3} * n * n);
    std::vector<double> gram(size_t{n} * n);
    add_gram_ref(rows.data(), 3 * n, n, gram.data());
    const Eigen eigen = symmetric_eigen_ref(n, gram);
    double trace = 0, sum = 0;
    for (uint32_t i = 0; i < n; ++i) {
      trace += gram[i * n + i], sum += eigen.values[i];
      if (i > 0) CHECK(eigen.values[i] <= eigen.values[i - 1]);
      for (uint32_t j = 0; j < n; ++j) {
        double product = 0, moved = 0;
        for (uint32_t c = 0; c < n; ++c) {
          product += eigen.vectors[i * n + c] * eigen.vectors[j * n + c];
          double row = 0;
          for (uint32_t d = 0; d < n; ++d) row += gram[c * n + d] * eigen.vectors[j * n + d];
          moved += eigen.vectors[i * n + c] * row;
        }
        CHECK(std::abs(product - (i == j ? 1 : 0)) < 1e-12);
        CHECK(std::abs(moved - (i == j ? eigen.values[i] : 0)) < 1e-10 * eigen.values[0]);
      }
    }
    CHECK(sum == doctest::Approx(trace).epsilon(1e-12));
  }
}

TEST_CASE("low rank: rows rebuilt from r directions lose the energy of the other eigenvalues") {
  constexpr uint32_t kRows = 60, kDim = 24;
  const std::vector<float> rows = random_rows(3, size_t{kRows} * kDim);
  std::vector<double> gram(size_t{kDim} * kDim);
  add_gram_ref(rows.data(), kRows, kDim, gram.data());
  const Eigen eigen = symmetric_eigen_ref(kDim, gram);
  const std::vector<float> basis(eigen.vectors.begin(), eigen.vectors.end());
  for (const uint32_t rank : {1u, 8u, 23u, 24u}) {
    double lost = 0, left = 0;
    for (uint32_t i = rank; i < kDim; ++i) left += eigen.values[i];
    for (uint32_t r = 0; r < kRows; ++r) {
      std::vector<float> coordinates(rank), back(kDim);
      project_ref(rows.data() + r * kDim, basis.data(), rank, kDim, coordinates.data());
      for (uint32_t first = 0; first < kDim; first += 8)
        rebuild_ref(coordinates.data(), basis.data(), rank, kDim, first, 8, back.data() + first);
      for (uint32_t i = 0; i < kDim; ++i) {
        const double off = static_cast<double>(back[i]) - static_cast<double>(rows[r * kDim + i]);
        lost += off * off;
      }
    }
    CHECK(std::abs(lost - left) < 1e-4 * (1 + left));
  }
}

TEST_CASE("low rank: a page with parallel keys is no outlier; one key in another direction makes it one") {
  constexpr uint32_t kDim = 16;
  std::vector<float> keys;
  const std::vector<float> key = random_rows(9, kDim);
  for (int t = 0; t < 8; ++t) keys.insert(keys.end(), key.begin(), key.end());
  CHECK(outlier_score_ref(keys.data(), key.data(), 8, kDim) < 1e-6f);
  for (uint32_t i = 0; i < kDim; ++i) keys[3 * kDim + i] *= -1;
  CHECK(outlier_score_ref(keys.data(), key.data(), 8, kDim) == doctest::Approx(2.0));
}
