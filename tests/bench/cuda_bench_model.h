// Shared by benchmarks of whole steps on the GPU: a model of random weights, and tokens for it.

#ifndef KVTWIN_TESTS_BENCH_CUDA_BENCH_MODEL_H_
#define KVTWIN_TESTS_BENCH_CUDA_BENCH_MODEL_H_

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/prng.h"
#include "engine/cuda/cuda_engine.h"
#include "models/catalog/catalog.h"

namespace kvtwin::bench {

// Arbitrary tokens; the first `prompt` are the prompt.
class DrawnTokens final : public cpu::TokenIds {
 public:
  DrawnTokens(uint32_t vocab, uint32_t prompt, uint32_t output)
      : vocab_(vocab), prompt_(prompt), output_(output) {}
  uint32_t token(RequestId request, uint32_t position) const override {
    return static_cast<uint32_t>(draw({raw(request), position}) % vocab_);
  }
  uint32_t prompt_tokens(RequestId) const override { return prompt_; }
  uint32_t output_tokens(RequestId) const override { return output_; }
  SessionId session(RequestId) const override { return {}; }

 private:
  const uint32_t vocab_, prompt_, output_;
};

template <typename T>
T must_be(Result<T> made) {
  if (!made) std::fprintf(stderr, "%s\n", made.error().text().c_str()), std::exit(3);
  return std::move(*made);
}

struct NamedModel {
  std::string name;
  LlmSpec llm;
  std::unique_ptr<ModelWeights> weights;
  std::unique_ptr<cuda::DeviceModel> device;
};

// Caches the last model requested.
inline const NamedModel& model_named(const char* name) {
  static NamedModel retained;
  if (retained.name == name) return retained;
  retained.device.reset();  // frees its memory first
  retained.name = name;
  retained.llm = must_be(Catalog().llm(name));
  retained.weights = std::make_unique<ModelWeights>(ModelWeights::random_outline(retained.llm, 1));
  retained.device = must_be(cuda::DeviceModel::make(*retained.weights));
  return retained;
}

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace kvtwin::bench

#endif  // KVTWIN_TESTS_BENCH_CUDA_BENCH_MODEL_H_
