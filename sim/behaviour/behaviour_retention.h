// What compressions keep in a backend without values: a behaviour model
// (docs/design/backend-interface-and-digest.md#outcomes).
//
// kFixed     every head keeps the budget's share of what is ranked.
// kProfile   each head keeps mean + z deviation of it, z drawn once per request, head and compression; the
// table
//            comes from a calibration (docs/design/methods/tangram.md#calibration, #profiles). A head group
//            is as long as its longest member.
// kContexts  all heads keep what they kept of one context of the calibration, drawn once per request: heads
// that
//            keep more where others keep less do so here, which decides how long groups get.
//
// Where the counts are the policy's, only positions are drawn, and only where KV entries keep their places:
// all candidates are equally likely. Draws are keyed by (seed, session, index in the session, attempt, head
// or position, end), so neither the order of sending nor of events, nor the engine, nor coalescing of steps
// changes them. Integers throughout, so neither does the compiler.

#ifndef KVTWIN_SIM_BEHAVIOUR_BEHAVIOUR_RETENTION_H_
#define KVTWIN_SIM_BEHAVIOUR_BEHAVIOUR_RETENTION_H_

#include <cstdint>
#include <initializer_list>
#include <map>
#include <vector>

#include "engine/kv/head_groups.h"
#include "engine/methods/config.h"
#include "engine/runtime/outcome_source.h"

namespace kvtwin::sim {

enum class RetentionModel : uint8_t { kFixed, kProfile, kContexts };

class RetentionSource final : public OutcomeSource {
 public:
  // One engine's. REQUIRES: the configuration is valid; kProfile: its budget_spec has mu and sigma for
  // every head. `contexts`: of kContexts, [contexts][heads], in the unit of mu; not empty there.
  RetentionSource(const CoreConfig& config, RetentionModel model, uint64_t seed,
                  std::vector<Fraction> contexts = {});

  void step(const LaunchStep& launch, uint32_t offset, DataOutcomes* values) override;
  void notify(const Command& command) override;

 private:
  struct Request {
    RequestKey key{};
    uint32_t attempt = 0;
    std::vector<uint32_t> dropped;     // by group: KV entries dropped so far
    std::vector<PageId> pages;         // where KV entries keep their places
    std::vector<bool> dropped_tokens;  // by position, likewise
  };

  void count(const Compression& compression, Request* request, std::vector<uint32_t>* counts) const;
  uint32_t retained_of_group(uint32_t group, const Request& request, uint32_t end, uint32_t candidates) const;
  void choose(const Compression& compression, Request* request, std::vector<uint64_t>* live);
  void reuse(const PrefixHit& prefix_hit, Request* request) const;
  void continue_from(const LaunchStep& launch, const PrefixHit& prefix_hit);
  Fraction fraction_of(uint32_t head, const Request& request, uint32_t end, Fraction fixed) const;
  // A draw of this request's own.
  uint64_t drawn(const Request& request, std::initializer_list<uint64_t> of) const;

  const uint32_t engine_;
  const BudgetSpec spec_;
  const bool released_, absolute_, dropped_slots_;
  const RetentionModel model_;
  const std::vector<Fraction> contexts_;
  const uint32_t page_tokens_;
  const uint64_t seed_;
  const GroupMap groups_;
  std::map<RequestId, Request> requests_;
  std::map<PageId, std::vector<bool>> page_dropped_;  // slots of a page that hold nothing any more
};

}  // namespace kvtwin::sim

#endif  // KVTWIN_SIM_BEHAVIOUR_BEHAVIOUR_RETENTION_H_
