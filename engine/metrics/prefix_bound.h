// PrefixBound computes an upper bound on the prompt tokens that a run could have found in the prefix cache.
//
// It watches a run. Afterwards it replays the run's own sequence of admissions and ends against a cache of
// the same number of pages that knows the future and evicts the page that is needed last (L. A. Belady, IBM
// Systems Journal 5(2), 1966). A request that needs a page needs all pages before it, so the pages needed
// last are tails of paths, and Belady's order never evicts a page before those that follow it. The bound
// holds for *this* sequence: with a better cache, requests would end earlier, and a client that waits for its
// answers would send later ones earlier.
//
// What is unknown is resolved upwards: pages of a prompt occupy memory once its first token exists (not while
// they are computed, chunk by chunk), those of an output once the request ends. Partly filled pages, and
// pages that an admission policy withholds, occupy none. A preempted request leaves in the cache all that it
// will ever compute.
//
// Not covered: tiers below the GPU, requests that move between engines, layouts that share prefix checkpoints
// instead of pages, mixed precision (the reuse of such engines may exceed the bound).

#ifndef KVTWIN_ENGINE_METRICS_PREFIX_BOUND_H_
#define KVTWIN_ENGINE_METRICS_PREFIX_BOUND_H_

#include <cstdint>
#include <vector>

#include "engine/runtime/driver.h"

namespace kvtwin {

class PrefixBound : public Observer {
 public:
  explicit PrefixBound(const std::vector<CoreConfig>& engines);

  void saw_event(Instant now, EngineId engine, const Event& event) override;
  void saw_command(Instant now, const Command& command) override;

  // Tokens found at first admission (metrics.h), summed over engines. Takes O(pages of all prompts) and about
  // 30 bytes for each page that was ever computed.
  uint64_t reused_tokens() const;

 private:
  friend class BeladyCache;
  enum class What : uint8_t { kAdmitted, kFirstToken, kDetached, kEnded };
  struct Happening {
    What what{};
    uint32_t request = 0;
  };
  struct Request {
    bool known = false, admitted = false;
    uint32_t prompt = 0, asked = 0;  // tokens of its prompt, and output tokens requested
    uint32_t tokens = 0;             // output tokens produced; set when it ends
    std::vector<UnitRun> identity;
  };
  struct Engine {
    uint32_t page_tokens = 0, unit_tokens = 0, pages = 0, steps_in_flight = 1;
    std::vector<Happening> happened;
  };

  void note(EngineId engine, What what, RequestId request);

  std::vector<Engine> engines_;
  std::vector<Request> requests_;  // by RequestId
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_METRICS_PREFIX_BOUND_H_
