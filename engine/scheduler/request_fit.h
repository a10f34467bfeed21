// RequestFit says whether an engine could ever run a request: alone, with nothing cached, preempted whenever
// that is worst. The policy rejects by it, and scenarios are checked by it before a run.

#ifndef KVTWIN_ENGINE_SCHEDULER_REQUEST_FIT_H_
#define KVTWIN_ENGINE_SCHEDULER_REQUEST_FIT_H_

#include <cstdint>
#include <optional>

#include "engine/base/commands.h"
#include "engine/base/events.h"
#include "engine/methods/axes.h"
#include "engine/methods/config.h"
#include "engine/methods/retention.h"

namespace kvtwin {

// The most pages that a request ever holds in each tier, if nothing of it is shared. Formats by tag: int4
// pages of the gpu, which are what runs short.
struct PagesNeeded {
  uint64_t gpu = 0;
  uint64_t host = 0;
};

// Why a request can never run.
struct Misfit {
  RejectRequest::Reason reason{};
  uint64_t needed = 0;  // tokens or pages, by reason
  uint64_t limit = 0;
};

class RequestFit {
 public:
  // REQUIRES: all are valid together, and outlive this.
  RequestFit(const CoreConfig& config, const PolicyAxes& axes, const Retention& retention);

  PagesNeeded needed(const RequestReady& request) const;
  // Placement resident, whose reservations are this. REQUIRES: fewer than 2^32 tokens.
  PagesNeeded needed_in_resident(uint32_t prompt_tokens, uint32_t output_tokens) const;
  // What requests may hold; the watermark stays free.
  PagesNeeded room() const;
  std::optional<Misfit> misfit(const RequestReady& request) const;

 private:
  uint64_t int4_pages(const RequestReady& request) const;

  const CoreConfig& config_;
  const Retention& retention_;
  const bool offloaded_, by_tag_;
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_SCHEDULER_REQUEST_FIT_H_
