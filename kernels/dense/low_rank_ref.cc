#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/base/check.h"
#include "kernels/common/score_math.h"
#include "kernels/common/wide.h"
#include "kernels/dense/low_rank.h"

namespace kvtwin::kernels {
namespace {

double square_sum(const std::vector<double>& a) {
  double sum = 0;
  for (const double x : a) sum += x * x;
  return sum;
}

// Rotates rows p and q.
KVTWIN_WIDE void turn_rows(double c, double s, uint32_t n, double* p, double* q) {
  for (uint32_t i = 0; i < n; ++i) {
    const double a = p[i], b = q[i];
    p[i] = c * a - s * b;
    q[i] = s * a + c * b;
  }
}

// One Jacobi rotation, which makes a[p][q] zero.
void rotate(uint32_t n, uint32_t p, uint32_t q, double* a, double* vectors) {
  const double off = a[size_t{p} * n + q];
  const double theta = (a[size_t{q} * n + q] - a[size_t{p} * n + p]) / (2 * off);
  const double t = (theta < 0 ? -1.0 : 1.0) / (std::abs(theta) + std::sqrt(theta * theta + 1));
  const double c = 1 / std::sqrt(t * t + 1), s = t * c;
  turn_rows(c, s, n, a + size_t{p} * n, a + size_t{q} * n);
  for (uint32_t i = 0; i < n; ++i) {
    double* const row = a + size_t{i} * n;
    const double x = row[p], y = row[q];
    row[p] = c * x - s * y;
    row[q] = s * x + c * y;
  }
  turn_rows(c, s, n, vectors + size_t{p} * n, vectors + size_t{q} * n);
}

}  // namespace

void add_gram_ref(const float* rows, uint32_t count, uint32_t dim, double* gram) {
  for (uint32_t r = 0; r < count; ++r) {
    const float* const row = rows + size_t{r} * dim;
    for (uint32_t i = 0; i < dim; ++i) {
      const auto x = static_cast<double>(row[i]);
      for (uint32_t j = 0; j < dim; ++j) gram[size_t{i} * dim + j] += x * static_cast<double>(row[j]);
    }
  }
}

Eigen symmetric_eigen_ref(uint32_t n, std::vector<double> matrix) {
  constexpr int kSweepsMax = 64;
  KVT_CHECK(matrix.size() == size_t{n} * n);
  std::vector<double> vectors(matrix.size(), 0.0);
  for (uint32_t i = 0; i < n; ++i) vectors[size_t{i} * n + i] = 1;
  const double nothing = square_sum(matrix) * 1e-30;
  for (int sweep = 0; sweep < kSweepsMax; ++sweep) {
    double concurrent = 0;
    for (uint32_t p = 0; p < n; ++p) {
      for (uint32_t q = p + 1; q < n; ++q)
        concurrent += 2 * matrix[size_t{p} * n + q] * matrix[size_t{p} * n + q];
    }
    if (concurrent <= nothing) break;
    for (uint32_t p = 0; p < n; ++p) {
      for (uint32_t q = p + 1; q < n; ++q) {
        if (matrix[size_t{p} * n + q] != 0) rotate(n, p, q, matrix.data(), vectors.data());
      }
    }
  }
  std::vector<uint32_t> order(n);
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    return matrix[size_t{a} * n + a] > matrix[size_t{b} * n + b];
  });
  Eigen out;
  for (const uint32_t i : order) {
    out.values.push_back(matrix[size_t{i} * n + i]);
    const auto from = vectors.begin() + static_cast<ptrdiff_t>(size_t{i} * n);
    out.vectors.insert(out.vectors.end(), from, from + n);
  }
  return out;
}

void project_ref(const float* x, const float* basis, uint32_t rank, uint32_t dim, float* out) {
  for (uint32_t r = 0; r < rank; ++r) out[r] = dot(x, basis + size_t{r} * dim, dim);
}

void rebuild_ref(const float* coordinates, const float* basis, uint32_t rank, uint32_t dim, uint32_t first,
                 uint32_t count, float* out) {
  std::fill_n(out, count, 0.0f);
  for (uint32_t r = 0; r < rank; ++r) {
    const float* const row = basis + size_t{r} * dim + first;
    for (uint32_t i = 0; i < count; ++i) out[i] += coordinates[r] * row[i];
  }
}

float outlier_score_ref(const float* keys, const float* landmark, uint32_t tokens, uint32_t dim) {
  const float length = norm2(landmark, dim);
  float least = 1;
  for (uint32_t t = 0; t < tokens; ++t) {
    const float* const key = keys + size_t{t} * dim;
    const float norms = norm2(key, dim) * length;
    least = std::min(least, norms > 0 ? dot(key, landmark, dim) / norms : 0.0f);
  }
  return 1 - least;
}

}  // namespace kvtwin::kernels
