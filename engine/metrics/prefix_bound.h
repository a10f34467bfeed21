// PrefixBound: how much of its prompts a run could have found in the cache at best.
//
// It watches a run and afterwards plays the run's own sequence of admissions and ends to a cache of as many
// pages that knows the future and lets go of the page that is needed last (L. A. Belady, IBM Systems Journal
// 5(2), 1966). Who needs a page needs all before it, so the pages needed last are tails of paths, and the
// order of Belady never leaves a hole. It is a bound for *this* sequence: a better cache would make requests
// end earlier, and a client that waits for its answers send others earlier.
//
// Where it cannot know, it says too much rather than too little: a prompt's pages take room when its first
// token exists (not while they are computed, chunk by chunk), an output's when the request ends; pages that
// are not full, and pages that an admission policy keeps back, take none. A preempted request leaves behind
// all that it will ever compute.
//
// Not covered: tiers below the gpu, requests that move between engines, layouts that share prefix checkpoints
// instead of pages, two formats (their engines' reuse may pass it).

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

  // Tokens found at first admission (metrics.h), summed over engines. O(pages of all prompts); about 30 bytes
  // for each page that was ever computed.
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
    uint32_t prompt = 0, asked = 0;  // tokens of its prompt and output
    uint32_t tokens = 0;             // of its output, once it has ended
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
