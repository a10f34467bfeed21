// RequestFit determines whether an engine can run a request at all: alone, with nothing cached, and preempted
// at the worst time. The policy rejects requests by it, and scenarios are checked by it before a run.

#ifndef KVTWIN_ENGINE_KV_MANAGERS_REQUEST_FIT_H_
#define KVTWIN_ENGINE_KV_MANAGERS_REQUEST_FIT_H_

#include <cstdint>
#include <optional>

#include "engine/base/commands.h"
#include "engine/base/events.h"
#include "engine/kv/managers/kv_kind.h"
#include "engine/methods/axes.h"
#include "engine/methods/config.h"
#include "engine/methods/retention.h"

namespace kvtwin {

// The largest number of pages that a request holds in each tier, if none of them is shared. Mixed precision:
// int4 pages on the GPU, which are the scarce ones.
struct PagesNeeded {
  uint64_t gpu = 0;
  uint64_t host = 0;
};

// The same for offloaded requests, whose reservations use it. REQUIRES: fewer than 2^32 tokens.
PagesNeeded pages_needed_resident(const CoreConfig& config, uint32_t prompt_tokens, uint32_t output_tokens);

// The reason why a request can never run.
struct Misfit {
  RejectRequest::Reason reason{};
  uint64_t needed = 0;  // tokens or pages, by reason
  uint64_t limit = 0;
};

class RequestFit {
 public:
  // REQUIRES: the arguments are valid in combination, and outlive this.
  RequestFit(const CoreConfig& config, const PolicyAxes& axes, const Retention& retention);

  PagesNeeded needed(const RequestReady& request) const;
  // The pages that requests may hold; the watermark remains free.
  PagesNeeded room() const;
  std::optional<Misfit> misfit(const RequestReady& request) const;

 private:
  uint64_t int4_pages(const RequestReady& request) const;

  const CoreConfig& config_;
  const Retention& retention_;
  const KvKind kind_;
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_KV_MANAGERS_REQUEST_FIT_H_
