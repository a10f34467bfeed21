// FrontEnd: the time of a server in front of its engine (HTTP, tokenizer, a token's way back). A request
// reaches the engine that much later than its client sends it; latencies count from the sending.

#ifndef KVTWIN_ENGINE_BASE_FRONT_END_H_
#define KVTWIN_ENGINE_BASE_FRONT_END_H_

#include <cstdint>

#include "engine/base/units.h"

namespace kvtwin {

struct FrontEnd {
  int64_t request_ns = 0;
  int64_t token_ps = 0;  // per prompt token

  Duration of(uint32_t prompt_tokens) const { return {request_ns + token_ps * prompt_tokens / 1000}; }
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_BASE_FRONT_END_H_
