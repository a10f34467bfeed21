// Small models of each kind, and token sources of tests.

#ifndef KVTWIN_TESTS_UNIT_CPU_ENGINE_TINY_MODELS_H_
#define KVTWIN_TESTS_UNIT_CPU_ENGINE_TINY_MODELS_H_

#include <map>
#include <string>
#include <vector>

#include "engine/base/check.h"
#include "engine/common/token_ids.h"
#include "models/catalog/llm.h"

namespace kvtwin::testing {

inline LlmSpec tiny_model(const std::string& family, uint32_t query_heads, uint32_t kv_heads) {
  LlmSpec m;
  m.name = "tiny";
  m.family = family;
  m.layers = 2;
  m.query_heads = query_heads, m.kv_heads = kv_heads, m.head_dim = 16;
  m.hidden = 40, m.intermediate = 56, m.vocab = 97;
  m.qkv_bias = family == "qwen2", m.qk_norm = family == "qwen3", m.tied_embeddings = family == "qwen3";
  m.context_window = 4096;
  return m;
}

// GQA 4:1 and MHA, with biases, norms and a scaled rotation among them.
inline std::vector<LlmSpec> tiny_models() {
  std::vector<LlmSpec> out = {tiny_model("llama", 4, 1), tiny_model("llama", 3, 3), tiny_model("qwen2", 8, 2),
                              tiny_model("qwen3", 8, 1)};
  out[0].rope.scaling = "llama3";
  out[0].rope.factor = 8, out[0].rope.original_context_window = 64;
  out[0].rope.low_freq_factor = 1, out[0].rope.high_freq_factor = 4;
  out[2].rope.scaling = "yarn";
  out[2].rope.factor = 4, out[2].rope.original_context_window = 64;
  return out;
}

// One of them with three layers, so that dense layers leave some for retrieval.
inline LlmSpec three_layers(size_t index) {
  LlmSpec llm = tiny_models()[index];
  llm.layers = 3;
  return llm;
}

// The tokens of prompts and outputs, as given.
class GivenTokens final : public cpu::TokenIds {
 public:
  void give(RequestId request, std::vector<uint32_t> tokens, uint32_t prompt) {
    requests_[request] = {std::move(tokens), prompt};
  }
  uint32_t token(RequestId request, uint32_t position) const override {
    const Given& given = requests_.at(request);
    KVT_CHECK(position < given.tokens.size());
    return given.tokens[position];
  }
  uint32_t prompt_tokens(RequestId request) const override { return requests_.at(request).prompt; }
  uint32_t output_tokens(RequestId request) const override {
    return static_cast<uint32_t>(requests_.at(request).tokens.size()) - requests_.at(request).prompt;
  }
  SessionId session(RequestId request) const override { return SessionId{raw(request)}; }

 private:
  struct Given {
    std::vector<uint32_t> tokens;
    uint32_t prompt = 0;
  };
  std::map<RequestId, Given> requests_;
};

}  // namespace kvtwin::testing

#endif  // KVTWIN_TESTS_UNIT_CPU_ENGINE_TINY_MODELS_H_
