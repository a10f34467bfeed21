#include "engine/cuda/device/matmul.h"

#include <fmt/format.h>

#include <utility>

#include "engine/base/check.h"
#include "engine/cuda/device/cublas_lt.h"
#include "engine/cuda/device/cuda_check.h"

namespace kvtwin::cuda {
namespace {

constexpr uint64_t kWorkspace = uint64_t{64} << 20;  // cuBLAS's default on this generation is 32 MiB

}  // namespace

struct Matmul::Plan {
  const CublasLt& lt;
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t w = nullptr, x = nullptr, y = nullptr;
  cublasLtMatmulAlgo_t algorithm{};

  explicit Plan(const CublasLt& library) : lt(library) {}
  Plan(const Plan&) = delete;
  ~Plan() {
    if (y != nullptr) lt.MatrixLayoutDestroy(y);
    if (x != nullptr) lt.MatrixLayoutDestroy(x);
    if (w != nullptr) lt.MatrixLayoutDestroy(w);
    if (operation != nullptr) lt.MatmulDescDestroy(operation);
  }
};

Matmul::Matmul() = default;
Matmul::~Matmul() {
  plans_.clear();
  if (handle_ != nullptr) lt_->Destroy(static_cast<cublasLtHandle_t>(handle_));
}

Result<std::unique_ptr<Matmul>> Matmul::make() {
  const Result<const CublasLt*> library = load_cublas_lt();
  if (!library) return tl::unexpected<Error>(library.error());
  std::unique_ptr<Matmul> out(new Matmul);
  out->lt_ = *library;
  cublasLtHandle_t handle = nullptr;
  if (const cublasStatus_t status = out->lt_->Create(&handle); status != CUBLAS_STATUS_SUCCESS)
    return make_error({}, what_failed("cublasLtCreate", "", 0, out->lt_->GetStatusString(status)));
  out->handle_ = handle;
  Result<Buffer> workspace = Buffer::make(Buffer::Kind::kDevice, kWorkspace, "matrix products", "workspace");
  if (!workspace) return tl::unexpected<Error>(workspace.error());
  out->workspace_ = std::move(*workspace);
  return out;
}

// cuBLAS is column-major: y^T [out x rows] = (w^T as stored [in x out])^T times x^T [in x rows].
const Matmul::Plan& Matmul::plan(const Key& key) {
  std::unique_ptr<Plan>& retained = plans_[key];
  if (retained != nullptr) return *retained;
  retained = std::make_unique<Plan>(*lt_);
  Plan& made = *retained;
  const auto ok = [&](cublasStatus_t status) {
    if (status == CUBLAS_STATUS_SUCCESS) return;
    fail(what_failed("matrix product", fmt::format("{} rows, {} in, {} out", key.rows, key.in, key.out),
                     workspace_.bytes(), lt_->GetStatusString(status)));
  };
  ok(lt_->MatmulDescCreate(&made.operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  const cublasOperation_t transposed = CUBLAS_OP_T;
  ok(lt_->MatmulDescSetAttribute(made.operation, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                 sizeof transposed));
  if (key.bias) {
    const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    ok(lt_->MatmulDescSetAttribute(made.operation, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
                                   sizeof epilogue));
  }
  const cudaDataType_t result = key.into == Into::kBf16 ? CUDA_R_16BF : CUDA_R_32F;
  ok(lt_->MatrixLayoutCreate(&made.w, CUDA_R_16BF, key.in, key.out, key.in));
  ok(lt_->MatrixLayoutCreate(&made.x, CUDA_R_16BF, key.in, key.rows, key.in));
  ok(lt_->MatrixLayoutCreate(&made.y, result, key.out, key.rows, key.out));
  cublasLtMatmulPreference_t preference = nullptr;
  ok(lt_->MatmulPreferenceCreate(&preference));
  const uint64_t bytes = workspace_.bytes();
  ok(lt_->MatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes,
                                       sizeof bytes));
  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  ok(lt_->MatmulAlgoGetHeuristic(static_cast<cublasLtHandle_t>(handle_), made.operation, made.w, made.x,
                                 made.y, made.y, preference, 1, &found, &count));
  lt_->MatmulPreferenceDestroy(preference);
  ok(count > 0 ? found.state : CUBLAS_STATUS_NOT_SUPPORTED);
  made.algorithm = found.algo;
  return made;
}

void Matmul::run(const Matrix& matrix, const __nv_bfloat16* x, uint32_t rows, Into into, void* y,
                 cudaStream_t stream) {
  if (rows == 0) return;
  KVT_CHECK(matrix.bias == nullptr || into == Into::kBf16);
  const Plan& chosen = plan({matrix.out, matrix.in, rows, into, matrix.bias != nullptr});
  if (matrix.bias != nullptr) {
    lt_->MatmulDescSetAttribute(chosen.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &matrix.bias,
                                sizeof matrix.bias);
  }
  const float one = 1, retained = into == Into::kAddFloat ? 1.0f : 0.0f;
  const cublasStatus_t status =
      lt_->Matmul(static_cast<cublasLtHandle_t>(handle_), chosen.operation, &one, matrix.weight, chosen.w, x,
                  chosen.x, &retained, y, chosen.y, y, chosen.y, &chosen.algorithm, workspace_.as<void>(),
                  workspace_.bytes(), stream);
  if (status != CUBLAS_STATUS_SUCCESS) {
    fail(what_failed("matrix product", fmt::format("{} rows, {} in, {} out", rows, matrix.in, matrix.out),
                     workspace_.bytes(), lt_->GetStatusString(status)));
  }
}

}  // namespace kvtwin::cuda
