#include "engine/kv/managers/grouped_demand.h"

#include <algorithm>

namespace kvtwin {

uint64_t GroupedDemand::to_admit(RequestIndex request, uint32_t cached, uint32_t tokens) const {
  const GroupedRequest& r = requests_[request];
  const RequestProgress& progress = context_.progress[request];
  const uint32_t covered = context_.tokens_covered(progress, cached, tokens);
  const uint64_t tails =
      r.shared.chunks.insert_barred ? 0 : checkpoints_.tails_ahead(r.shared, progress.known());
  if (!retention_.staged()) {
    return (cached == 0 ? retention_.pages_raw(covered) : r.tables.pages_until(covered)) +
           (reserves() ? tails : 0);
  }
  if (!reserves()) return retention_.pages_retained(covered, 0) - r.tables.shared();
  // docs/design/methods/tangram.md#reservation: exactly the retained KV entries of the prompt, and the output
  // as far as decode_reserve covers it.
  const uint32_t left = progress.prompt + progress.output - progress.known();
  const uint32_t reserve = context_.config.policies.budget_spec.decode_reserve;
  return retention_.pages_retained(progress.known(),
                                   context_.reserves_all() ? left : std::min(left, reserve)) -
         r.tables.shared() + tails;
}

uint64_t GroupedDemand::to_return(RequestIndex request, uint32_t tokens) const {
  const GroupedRequest& r = requests_[request];
  const RequestProgress& progress = context_.progress[request];
  if (!reserves()) return lacking(request, tokens);
  if (!retention_.staged()) return r.tables.pages_lacking(progress.prompt + progress.output);
  const uint32_t left = progress.prompt + progress.output - progress.known();
  const uint32_t reserve = context_.config.policies.budget_spec.decode_reserve;
  const uint32_t raw = progress.known() - r.compression.fill;
  return retention_.pages_retained(r.compression.fill,
                                   raw + (context_.reserves_all() ? left : std::min(left, reserve)));
}

uint64_t GroupedDemand::for_next(const AdmissionAsk& ask) const {
  uint64_t pages = 0;
  for (const RequestIndex request : ask.running) pages += for_next(request, ask.budget);
  return pages;
}

uint64_t GroupedDemand::for_next(RequestIndex request, const TokenBudget& budget) const {
  const RequestProgress& progress = context_.progress[request];
  if (progress.launched_out()) return 0;
  const uint32_t tokens =
      std::max(1u, budget.entry_tokens(progress, progress.computed, progress.decodes_next()));
  const uint64_t pages = lacking(request, tokens);
  return pages - std::min<uint64_t>(pages, requests_[request].reserved.left);
}

// Pages that the request lacks for `tokens` more tokens; all of them, while it is swapped out.
uint64_t GroupedDemand::lacking(RequestIndex request, uint32_t tokens) const {
  const GroupedRequest& r = requests_[request];
  const uint32_t computed = context_.progress[request].computed;
  if (!retention_.staged() || !r.fills(computed)) return r.tables.pages_lacking(computed + tokens);
  entries_after(r, computed + tokens, &after_);
  return r.tables.pages_lacking(after_);
}

void GroupedDemand::entries_after(const GroupedRequest& r, uint32_t tokens,
                                  std::vector<uint32_t>* entries) const {
  entries->clear();
  for (uint32_t g = 0; g < r.tables.groups(); ++g) {
    const uint32_t retained = retention_.entries_after(g, tokens, r.compression.spans);
    entries->push_back(retention_.staged() ? retained : std::min(retained, r.tables.kv_entries(g, tokens)));
  }
}

}  // namespace kvtwin
