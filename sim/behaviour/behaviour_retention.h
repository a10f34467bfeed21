// RetentionSource is a behaviour model: what compressions retain in a backend without values
// (docs/design/backend-interface-and-digest.md#outcomes).
//
// * kFixed: every head retains the budget's fraction of the ranked tokens.
// * kProfile: each head retains mean + z * deviation, with z drawn once per request, head and compression.
//   The table comes from a calibration (docs/design/methods/tangram.md#calibration, #profiles). A head group
//   is as long as its longest member.
// * kContexts: all heads retain what they retained in one context of the calibration, drawn once per request.
//   This preserves the correlation between heads, which decides how long groups get.
//
// Where the policy decides the counts, only positions are drawn, and only where entries stay in their slots:
// all candidates are equally likely. Draws are keyed by (seed, session, index in the session, attempt, head
// or position, end), so they do not depend on the order of sending or of events, the engine, or coalescing.
// All arithmetic is on integers, so they do not depend on the compiler either.

#ifndef KVTWIN_SIM_BEHAVIOUR_BEHAVIOUR_RETENTION_H_
#define KVTWIN_SIM_BEHAVIOUR_BEHAVIOUR_RETENTION_H_

#include <cstdint>
#include <initializer_list>
#include <map>
#include <vector>

#include "engine/kv/head_groups.h"
#include "engine/methods/config.h"
#include "engine/methods/outcome_rules.h"
#include "engine/methods/traits.h"
#include "engine/runtime/outcome_source.h"

namespace kvtwin::sim {

enum class RetentionModel : uint8_t { kFixed, kProfile, kContexts };

class RetentionSource final : public OutcomeSource {
 public:
  // For one engine. REQUIRES: the configuration is valid; kProfile: its budget_spec has mu and sigma for
  // every head. `contexts`: for kContexts, [contexts][heads] in the unit of mu, not empty.
  RetentionSource(const CoreConfig& config, RetentionModel model, uint64_t seed,
                  std::vector<Fraction> contexts = {});

  void step(const LaunchStep& launch, uint32_t offset, DataOutcomes* values) override;
  void notify(const Command& command) override;

 private:
  struct Request {
    RequestKey key{};
    uint32_t attempt = 0;
    std::vector<uint32_t> dropped;     // by group: entries dropped so far
    std::vector<PageId> pages;         // where entries stay in their slots
    std::vector<bool> dropped_tokens;  // the same, by position
  };

  void count(const Compression& compression, Request* request, std::vector<uint32_t>* counts) const;
  void choose(const Compression& compression, Request* request, std::vector<uint64_t>* live);
  void reuse(const PrefixHit& prefix_hit, Request* request) const;
  void begin_with(const LaunchStep& launch, const PrefixHit& prefix_hit);
  void move_to(std::span<const PageId> pages, Request* request);
  Fraction fraction_of(uint32_t head, const Request& request, uint32_t end, Fraction fixed) const;
  // A draw for this request.
  uint64_t drawn(const Request& request, std::initializer_list<uint64_t> of) const;

  const uint32_t engine_;
  const BudgetSpec spec_;
  const CountRule rule_;
  const bool dropped_slots_;
  const RetentionModel model_;
  const std::vector<Fraction> contexts_;
  const uint32_t page_tokens_;
  const uint64_t seed_;
  const GroupMap groups_;
  std::map<RequestId, Request> requests_;
  std::map<PageId, std::vector<bool>> page_dropped_;  // dropped slots of a page
};

}  // namespace kvtwin::sim

#endif  // KVTWIN_SIM_BEHAVIOUR_BEHAVIOUR_RETENTION_H_
