// GroupedDemand is how many pages requests with tables by head group need: to be admitted, for their next
// entry, and to return after they were swapped out. It changes nothing.

#ifndef KVTWIN_ENGINE_KV_MANAGERS_GROUPED_DEMAND_H_
#define KVTWIN_ENGINE_KV_MANAGERS_GROUPED_DEMAND_H_

#include <cstdint>
#include <vector>

#include "engine/kv/managers/grouped_request.h"

namespace kvtwin {

class GroupedDemand {
 public:
  // All must outlive it. `requests` by RequestIndex.
  GroupedDemand(const KvContext* context, const ChunkCheckpoints* checkpoints,
                const std::vector<GroupedRequest>* requests)
      : context_(*context),
        retention_(context->retention),
        checkpoints_(*checkpoints),
        requests_(*requests) {}

  // Whether pages are set aside for what a request will need.
  bool reserves() const { return retention_.reserves() || context_.reserves_all(); }
  // Pages that must be available, besides those that its tables hold, to admit the request with `cached`
  // tokens of a prefix. `tokens`: its first entry.
  uint64_t to_admit(RequestIndex request, uint32_t cached, uint32_t tokens) const;
  // Pages that a swapped-out request needs to return: those of its next entry, or all that are reserved for
  // it as at admission. What was compressed stays so; further output is not.
  uint64_t to_return(RequestIndex request, uint32_t tokens) const;
  // Pages that the running requests take for their next entries, beyond their reservations.
  uint64_t for_next(const AdmissionAsk& ask) const;
  // KV entries by group after an entry that ends at `tokens` tokens, or after its compression.
  void entries_after(const GroupedRequest& r, uint32_t tokens, std::vector<uint32_t>* entries) const;

 private:
  uint64_t for_next(RequestIndex request, const TokenBudget& budget) const;
  uint64_t lacking(RequestIndex request, uint32_t tokens) const;

  const KvContext& context_;
  const Retention& retention_;
  const ChunkCheckpoints& checkpoints_;
  const std::vector<GroupedRequest>& requests_;
  mutable std::vector<uint32_t> after_;  // scratch
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_KV_MANAGERS_GROUPED_DEMAND_H_
