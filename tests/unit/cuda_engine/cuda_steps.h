// The same hand-made steps on the CUDA engine and on its definition, the CPU engine.

#ifndef KVTWIN_TESTS_UNIT_CUDA_ENGINE_CUDA_STEPS_H_
#define KVTWIN_TESTS_UNIT_CUDA_ENGINE_CUDA_STEPS_H_

#include <memory>
#include <string>
#include <vector>

#include "engine/cuda/cuda_engine.h"
#include "tests/unit/cpu_engine/steps.h"
#include "tests/unit/cpu_engine/tiny_models.h"

namespace kvtwin::testing {

// Heads of 64 and 128, which attention_decode supports; GQA 1 to 8, biases, norms, tied embeddings.
inline std::vector<LlmSpec> cuda_models() {
  std::vector<LlmSpec> out = tiny_models();  // heads of 16, which it does not support
  const struct {
    const char* family;
    uint32_t query_heads, kv_heads, head_dim, layers;
  } rows[] = {
      {"llama", 8, 2, 64, 4}, {"qwen2", 4, 4, 64, 2}, {"qwen3", 8, 1, 128, 2}, {"llama", 6, 2, 128, 8}};
  for (const auto& row : rows) {
    LlmSpec m = tiny_model(row.family, row.query_heads, row.kv_heads);
    m.head_dim = row.head_dim, m.layers = row.layers;
    m.hidden = 256, m.intermediate = 512, m.vocab = 512;
    out.push_back(m);
  }
  out.back().output_bias = out.back().mlp_bias = true;
  return out;
}

inline std::unique_ptr<cuda::DeviceModel> on_device(const ModelWeights& weights) {
  Result<std::unique_ptr<cuda::DeviceModel>> made = cuda::DeviceModel::make(weights);
  if (!made) check_failed(made.error().text().c_str(), __FILE__, __LINE__);
  return std::move(*made);
}

class CudaSteps : public EngineSteps<cuda::CudaEngine> {
 public:
  CudaSteps(cuda::CudaEngineConfig config, const cuda::DeviceModel& model, const cpu::TokenIds* tokens,
            uint64_t seed)
      : EngineSteps(config.page_tokens, config.pages_gpu, seed, make(config, model, tokens)) {}

 private:
  static std::unique_ptr<cuda::CudaEngine> make(cuda::CudaEngineConfig config, const cuda::DeviceModel& model,
                                                const cpu::TokenIds* tokens) {
    if (config.rows_max == 0) config.rows_max = 128;
    if (config.samples_max == 0) config.samples_max = 16;
    config.poison = true;
    Result<std::unique_ptr<cuda::CudaEngine>> made = cuda::CudaEngine::make(config, &model, tokens);
    if (!made) check_failed(made.error().text().c_str(), __FILE__, __LINE__);
    return std::move(*made);
  }
};

// bf16 rounds by at most 2^-9, and one layer rounds eight times in sequence (norm, qkv, rotation, attention
// weights, its output, norm, gates, activation), independently. Layers of random weights add equal fractions
// to the residual stream, which is not rounded. The total error therefore grows with the number of layers
// only by what later layers make of earlier errors.
inline double bf16_tolerance(const LlmSpec& llm) { return 0.01 + 0.001 * llm.layers; }

}  // namespace kvtwin::testing

#endif  // KVTWIN_TESTS_UNIT_CUDA_ENGINE_CUDA_STEPS_H_
