// Tokens of calls that only benchmarks have.

#ifndef KVTWIN_ENGINE_CUDA_DRAWN_TOKENS_H_
#define KVTWIN_ENGINE_CUDA_DRAWN_TOKENS_H_

#include <cstdint>
#include <map>

#include "engine/base/prng.h"
#include "engine/cpu/token_ids.h"

namespace kvtwin::cuda {

// Any tokens. What a call samples first is the first token of its output.
class DrawnTokens final : public cpu::TokenIds {
 public:
  explicit DrawnTokens(uint32_t vocab) : vocab_(vocab) {}
  uint32_t token(CallId call, uint32_t position) const override {
    return static_cast<uint32_t>(draw({raw(call), position}) % vocab_);
  }
  uint32_t prompt_tokens(CallId call) const override { return prompts_.at(call); }
  uint32_t output_tokens(CallId) const override { return UINT32_MAX / 2; }
  SessionId session(CallId) const override { return {}; }
  void begin(CallId call, uint32_t prompt) { prompts_[call] = prompt; }
  void end(CallId call) { prompts_.erase(call); }

 private:
  const uint32_t vocab_;
  std::map<CallId, uint32_t> prompts_;
};

}  // namespace kvtwin::cuda

#endif  // KVTWIN_ENGINE_CUDA_DRAWN_TOKENS_H_
