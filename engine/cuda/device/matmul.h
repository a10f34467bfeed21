// y[r][n] = sum over k of x[r][k] * w[n][k], plus bias[n], by cuBLASLt: bf16 in, fp32 sums.
//
// Which of its kernels runs is chosen by cuBLASLt once per (matrix shape, rows), and kept. So a row's result
// may depend on the number of other rows; for equal steps it is the same bits.

#ifndef KVTWIN_ENGINE_CUDA_DEVICE_MATMUL_H_
#define KVTWIN_ENGINE_CUDA_DEVICE_MATMUL_H_

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <compare>
#include <cstdint>
#include <map>
#include <memory>

#include "engine/base/result.h"
#include "engine/cuda/device/buffer.h"

namespace kvtwin::cuda {

struct Matrix {
  const __nv_bfloat16* weight = nullptr;  // [out][in]
  const __nv_bfloat16* bias = nullptr;    // [out]; null: none
  uint32_t out = 0, in = 0;
};

struct CublasLt;

class Matmul {
 public:
  enum class Into : uint8_t {
    kBf16,      // y is bf16
    kFloat,     // y is fp32
    kAddFloat,  // y is fp32, and the product is added to it
  };

  static Result<std::unique_ptr<Matmul>> make();
  ~Matmul();

  // x [rows][in], y [rows][out]. A bias goes with kBf16 alone.
  void run(const Matrix& matrix, const __nv_bfloat16* x, uint32_t rows, Into into, void* y,
           cudaStream_t stream);

 private:
  struct Key {
    uint32_t out, in, rows;
    Into into;
    bool bias;
    auto operator<=>(const Key&) const = default;
  };
  struct Plan;

  Matmul();
  const Plan& plan(const Key& key);

  const CublasLt* lt_ = nullptr;
  void* handle_ = nullptr;
  Buffer workspace_;
  std::map<Key, std::unique_ptr<Plan>> plans_;
};

}  // namespace kvtwin::cuda

#endif  // KVTWIN_ENGINE_CUDA_DEVICE_MATMUL_H_
