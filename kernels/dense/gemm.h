// y[r][n] = sum_k x[r][k] * w[n][k] + bias[n]: every matrix product of the forward pass on the CPU.
//
// Each y is one accumulator over k in ascending order. A row's result therefore depends neither on the other
// rows nor on the machine, and a chunked prefill equals an unchunked one bit for bit. A BLAS guarantees
// neither.

#ifndef KVTWIN_KERNELS_DENSE_GEMM_H_
#define KVTWIN_KERNELS_DENSE_GEMM_H_

#include <cstdint>
#include <vector>

namespace kvtwin::kernels {

// w [out][in] in panels of 16 outputs: panels[n / 16][k][n % 16]; outputs beyond `out` are zero.
struct PackedMatrix {
  uint32_t out = 0, in = 0;
  std::vector<float> panels;
};

// Packs rows [row_first, row_first + rows) of a matrix, given as [rows][in]. REQUIRES: pack_begin() was
// called for `to`; row_first is a multiple of 16.
void pack_begin(uint32_t out, uint32_t in, PackedMatrix* to);
void pack_rows(const float* w, uint32_t row_first, uint32_t rows, PackedMatrix* to);

// x [rows][in], y [rows][out]; bias [out], or null. y may not overlap x.
void gemm_ref(const PackedMatrix& w, const float* bias, const float* x, uint32_t rows, float* y);

}  // namespace kvtwin::kernels

#endif  // KVTWIN_KERNELS_DENSE_GEMM_H_
