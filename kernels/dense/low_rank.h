// What few directions carry: eigenvectors of a Gram matrix, coordinates in them, and rows rebuilt from these.
//
// ShadowKV keeps a prompt's keys as U (S V) of rank r (docs/design/methods/freekv.md#timelines). The r
// leading eigenvectors of K^T K span the same rows as V, so K ~ (K V) V^T: coordinates for every token, one
// basis for all. InfiniGen turns queries and keys into the eigenvectors of its queries, so that few columns
// carry most of q.k.
//
// Matrices and sums are double, in one fixed order; square roots alone are not plain additions and
// multiplications, and IEEE rounds them correctly: the same bits everywhere.

#ifndef KVTWIN_KERNELS_DENSE_LOW_RANK_H_
#define KVTWIN_KERNELS_DENSE_LOW_RANK_H_

#include <cstdint>
#include <vector>

namespace kvtwin::kernels {

// gram [dim][dim] += row^T row, for `count` rows [count][dim].
void add_gram_ref(const float* rows, uint32_t count, uint32_t dim, double* gram);

// All eigenvectors of a symmetric matrix [n][n], by cyclic Jacobi rotations until nothing is left outside the
// diagonal at 1e-15 of the whole: O(n^3) a sweep, 6 to 10 sweeps.
struct Eigen {
  std::vector<double> values;   // [n], descending; ties: as the rotations left them
  std::vector<double> vectors;  // [n][n]: row i belongs to values[i]; orthonormal
};
Eigen symmetric_eigen_ref(uint32_t n, std::vector<double> matrix);

// out[r] = x . basis[r]; x [dim], basis [rank][dim], out [rank].
void project_ref(const float* x, const float* basis, uint32_t rank, uint32_t dim, float* out);
// out[i] = sum_r coordinates[r] basis[r][first + i], i < count.
void rebuild_ref(const float* coordinates, const float* basis, uint32_t rank, uint32_t dim, uint32_t first,
                 uint32_t count, float* out);

// ShadowKV's outliers: how unlike its landmark the most unlike key of a page is, 1 - min_t cos(K_t,
// landmark). keys [tokens][dim], landmark [dim]. Larger: the landmark says less about the page. A zero vector
// is like nothing: 1.
float outlier_score_ref(const float* keys, const float* landmark, uint32_t tokens, uint32_t dim);

}  // namespace kvtwin::kernels

#endif  // KVTWIN_KERNELS_DENSE_LOW_RANK_H_
