// Low-rank approximation: eigenvectors of a Gram matrix, coordinates in their basis, and rows rebuilt from
// them.
//
// ShadowKV stores a prompt's keys as U (S V) of rank r (docs/design/methods/freekv.md#timelines). The r
// leading eigenvectors of K^T K span the same rows as V, so K ~ (K V) V^T: coordinates per token, one basis
// for all. InfiniGen rotates queries and keys into the eigenvectors of its queries, so that few columns carry
// most of q.k.
//
// Matrices and sums are double, in one fixed order. Besides additions and multiplications only square roots
// are used, and IEEE rounds them correctly: the same bits on every machine.

#ifndef KVTWIN_KERNELS_DENSE_LOW_RANK_H_
#define KVTWIN_KERNELS_DENSE_LOW_RANK_H_

#include <cstdint>
#include <vector>

namespace kvtwin::kernels {

// gram [dim][dim] += row^T row, for `count` rows [count][dim].
void add_gram_ref(const float* rows, uint32_t count, uint32_t dim, double* gram);

// All eigenvectors of a symmetric matrix [n][n], by cyclic Jacobi rotations until the off-diagonal is below
// 1e-15 of the whole: O(n^3) per sweep, 6 to 10 sweeps.
struct Eigen {
  std::vector<double> values;   // [n], descending; the order of ties is that of the rotations
  std::vector<double> vectors;  // [n][n]: row i belongs to values[i]; orthonormal
};
Eigen symmetric_eigen_ref(uint32_t n, std::vector<double> matrix);

// out[r] = x . basis[r]; x [dim], basis [rank][dim], out [rank].
void project_ref(const float* x, const float* basis, uint32_t rank, uint32_t dim, float* out);
// out[i] = sum_r coordinates[r] basis[r][first + i], i < count.
void rebuild_ref(const float* coordinates, const float* basis, uint32_t rank, uint32_t dim, uint32_t first,
                 uint32_t count, float* out);

// ShadowKV's outlier score of a page: 1 - min_t cos(K_t, landmark). A larger score means that the landmark
// represents the page less well. keys [tokens][dim], landmark [dim]. The cosine of a zero vector counts as 0.
float outlier_score_ref(const float* keys, const float* landmark, uint32_t tokens, uint32_t dim);

}  // namespace kvtwin::kernels

#endif  // KVTWIN_KERNELS_DENSE_LOW_RANK_H_
