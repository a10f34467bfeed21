// y[r][n] = sum over k of x[r][k] * w[n][k], plus bias[n]: every matrix product of the forward pass.
//
// Each y is one accumulator that runs over k in order. So a row's result does not depend on how many rows
// there are or where it stands, nor on the machine: a chunked prefill equals a whole one bit for bit. A BLAS
// promises none of this (README.md says what that costs).

#ifndef KVTWIN_KERNELS_DENSE_GEMM_H_
#define KVTWIN_KERNELS_DENSE_GEMM_H_

#include <cstdint>
#include <vector>

namespace kvtwin::kernels {

// w [out][in], cut into panels of 16 outputs: panels[n / 16][k][n % 16]; outputs that there are not are zero.
struct PackedMatrix {
  uint32_t out = 0, in = 0;
  std::vector<float> panels;
};

// Rows [row_first, row_first + rows) of a matrix, given as [rows][in]. REQUIRES: to->out, to->in and
// to->panels' size are set (pack_begin); row_first is a multiple of 16.
void pack_begin(uint32_t out, uint32_t in, PackedMatrix* to);
void pack_rows(const float* w, uint32_t row_first, uint32_t rows, PackedMatrix* to);

// x [rows][in], y [rows][out]; bias [out], or null. y may not overlap x.
void gemm_ref(const PackedMatrix& w, const float* bias, const float* x, uint32_t rows, float* y);

}  // namespace kvtwin::kernels

#endif  // KVTWIN_KERNELS_DENSE_GEMM_H_
