// cuBLASLt, loaded when the first matrix product is made ready: half a gigabyte of library, which a program
// that is linked to it reads at every start (0.15 s), whatever it does.

#ifndef KVTWIN_ENGINE_CUDA_DEVICE_CUBLAS_LT_H_
#define KVTWIN_ENGINE_CUDA_DEVICE_CUBLAS_LT_H_

#include <cublasLt.h>

#include "engine/base/result.h"

namespace kvtwin::cuda {

// The functions we call, under their names without the prefix.
struct CublasLt {
  decltype(&::cublasLtCreate) Create = nullptr;
  decltype(&::cublasLtDestroy) Destroy = nullptr;
  decltype(&::cublasLtGetStatusString) GetStatusString = nullptr;
  decltype(&::cublasLtMatmul) Matmul = nullptr;
  decltype(&::cublasLtMatmulAlgoGetHeuristic) MatmulAlgoGetHeuristic = nullptr;
  decltype(&::cublasLtMatmulDescCreate) MatmulDescCreate = nullptr;
  decltype(&::cublasLtMatmulDescDestroy) MatmulDescDestroy = nullptr;
  decltype(&::cublasLtMatmulDescSetAttribute) MatmulDescSetAttribute = nullptr;
  decltype(&::cublasLtMatmulPreferenceCreate) MatmulPreferenceCreate = nullptr;
  decltype(&::cublasLtMatmulPreferenceDestroy) MatmulPreferenceDestroy = nullptr;
  decltype(&::cublasLtMatmulPreferenceSetAttribute) MatmulPreferenceSetAttribute = nullptr;
  decltype(&::cublasLtMatrixLayoutCreate) MatrixLayoutCreate = nullptr;
  decltype(&::cublasLtMatrixLayoutDestroy) MatrixLayoutDestroy = nullptr;
};

// Loads it, once. Errors: the library is neither on the loader's path nor where this build found it.
Result<const CublasLt*> load_cublas_lt();

}  // namespace kvtwin::cuda

#endif  // KVTWIN_ENGINE_CUDA_DEVICE_CUBLAS_LT_H_
