#include "engine/cuda/device/cublas_lt.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <string>

namespace kvtwin::cuda {
namespace {

template <typename Function>
void find(void* library, const char* name, Function* function, std::string* missing) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  if (*function == nullptr && missing->empty()) *missing = name;
}

Result<const CublasLt*> load() {
  static CublasLt lt;
  const std::string name = fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR);
  void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) library = dlopen(KVTWIN_CUBLASLT, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return make_error({}, fmt::format("{} cannot be loaded", name),
                      "put its folder into LD_LIBRARY_PATH (it comes with the CUDA toolkit)");
  }
  std::string missing;
  find(library, "cublasLtCreate", &lt.Create, &missing);
  find(library, "cublasLtDestroy", &lt.Destroy, &missing);
  find(library, "cublasLtGetStatusString", &lt.GetStatusString, &missing);
  find(library, "cublasLtMatmul", &lt.Matmul, &missing);
  find(library, "cublasLtMatmulAlgoGetHeuristic", &lt.MatmulAlgoGetHeuristic, &missing);
  find(library, "cublasLtMatmulDescCreate", &lt.MatmulDescCreate, &missing);
  find(library, "cublasLtMatmulDescDestroy", &lt.MatmulDescDestroy, &missing);
  find(library, "cublasLtMatmulDescSetAttribute", &lt.MatmulDescSetAttribute, &missing);
  find(library, "cublasLtMatmulPreferenceCreate", &lt.MatmulPreferenceCreate, &missing);
  find(library, "cublasLtMatmulPreferenceDestroy", &lt.MatmulPreferenceDestroy, &missing);
  find(library, "cublasLtMatmulPreferenceSetAttribute", &lt.MatmulPreferenceSetAttribute, &missing);
  find(library, "cublasLtMatrixLayoutCreate", &lt.MatrixLayoutCreate, &missing);
  find(library, "cublasLtMatrixLayoutDestroy", &lt.MatrixLayoutDestroy, &missing);
  if (!missing.empty()) return make_error({}, fmt::format("{} has no {}", name, missing));
  return &lt;
}

}  // namespace

Result<const CublasLt*> load_cublas_lt() {
  static const Result<const CublasLt*> loaded = load();
  return loaded;
}

}  // namespace kvtwin::cuda
