// Token ids for requests of benchmarks.

#ifndef KVTWIN_ENGINE_CALIBRATE_DRAWN_TOKENS_H_
#define KVTWIN_ENGINE_CALIBRATE_DRAWN_TOKENS_H_

#include <cstdint>
#include <map>

#include "engine/base/prng.h"
#include "engine/common/token_ids.h"

namespace kvtwin::cuda {

// DrawnTokens provides random token ids. The first sample of a request is the first token of its output.
class DrawnTokens final : public cpu::TokenIds {
 public:
  explicit DrawnTokens(uint32_t vocab) : vocab_(vocab) {}
  uint32_t token(RequestId request, uint32_t position) const override {
    return static_cast<uint32_t>(draw({raw(request), position}) % vocab_);
  }
  uint32_t prompt_tokens(RequestId request) const override { return prompts_.at(request); }
  uint32_t output_tokens(RequestId) const override { return UINT32_MAX / 2; }
  SessionId session(RequestId) const override { return {}; }
  void begin(RequestId request, uint32_t prompt) { prompts_[request] = prompt; }
  void end(RequestId request) { prompts_.erase(request); }

 private:
  const uint32_t vocab_;
  std::map<RequestId, uint32_t> prompts_;
};

}  // namespace kvtwin::cuda

#endif  // KVTWIN_ENGINE_CALIBRATE_DRAWN_TOKENS_H_
