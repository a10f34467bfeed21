// Whole runs of a RetrievedCache: the real policy, the CPU engine, and arriving requests.

#ifndef KVTWIN_TESTS_UNIT_CPU_RETRIEVAL_RETRIEVAL_RUN_H_
#define KVTWIN_TESTS_UNIT_CPU_RETRIEVAL_RETRIEVAL_RUN_H_

#include <doctest/doctest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "engine/common/retrieval/retrieval_witness.h"
#include "engine/cpu/cpu_engine.h"
#include "engine/methods/config.h"
#include "engine/runtime/driver.h"
#include "models/weights/weights.h"
#include "tests/support/retrieval_names.h"

namespace kvtwin::testing {

struct RetrievalRequest {
  int64_t at_ns = 0;
  uint32_t prompt = 0, output = 0;
  uint32_t session = UINT32_MAX;       // UINT32_MAX: a session of its own
  std::vector<UnitRun> identity = {};  // in pages; empty: private tokens
};

// Sends the requests at their times and waits for the end.
class ArrivingRequests final : public Client {
 public:
  explicit ArrivingRequests(const std::vector<RetrievalRequest>& requests) : requests_(requests) {}
  Instant wake_at() const override {
    return next_ < requests_.size() ? Instant{requests_[next_].at_ns} : kNever;
  }
  void wake(Instant now, ClientEvents* events) override {
    for (; next_ < requests_.size() && requests_[next_].at_ns <= now.ns; ++next_) {
      const RetrievalRequest& request = requests_[next_];
      const SessionId session{request.session == UINT32_MAX ? next_ : request.session};
      RequestReady ready{RequestId{next_}, session, request.prompt, request.output, request.identity, {}};
      ready.index = next_;
      events->push_back(ready);
    }
  }
  void tokens_emitted(Instant, RequestId, uint32_t, ClientEvents*) override {}
  void request_finished(Instant, RequestId, uint32_t, bool, ClientEvents*) override { ++finished; }
  void request_rejected(Instant, RequestId request, ClientEvents*) override { FAIL_CHECK(raw(request)); }
  uint32_t finished = 0;

 private:
  const std::vector<RetrievalRequest>& requests_;
  uint32_t next_ = 0;
};

struct RetrievalSetting {
  std::string retrieval = "freekv";  // "all": the dense engine
  RetrievalSpec spec{};
  RecallCopies copies{};
  uint32_t page_tokens = 8;
  uint32_t pages_gpu = 400, pages_host = 400;
  uint32_t step_tokens_max = 64, requests_max = 8, in_flight = 1;
  std::vector<uint32_t> capture_sizes{};
  uint64_t seed = 1;    // of tokens and times
  uint64_t delays = 0;  // seed of the copies' delays; 0: none
  cpu::RetrievalWitness* witness = nullptr;
  bool prefix_cache = false;
  std::string identity = "shared";
  std::string precision = "bf16";
  // The scorer that drops KV entries when a prompt is complete; layout compact. "none": no entry is dropped.
  std::string scorer = "none", budget = "uniform";
  BudgetSpec budget_spec{};
};

// Small enough that a few hundred tokens need selection. In pages of 8 tokens: 1 sink, a window of 2, 4
// selected.
RetrievalSpec small_spec(RetrievalName method);

struct RetrievalOutcome {
  std::map<RequestId, std::vector<float>> logits;  // of every sample, in sequence
  std::vector<DataOutcomes> steps;                 // recalls only
  cpu::CpuEngine::Recalled recalled;
  uint64_t preemptions = 0;
  std::set<RequestId> preempted;
  uint64_t tokens_reused = 0;
  uint64_t compressions = 0;
  uint64_t digest = 0;
};

// Runs to the end, and checks that every request was answered, that no page read was missing, and that the
// log replays to the same digest.
RetrievalOutcome run_retrieval(const RetrievalSetting& setting, const ModelWeights& weights,
                               const std::vector<RetrievalRequest>& requests);

// Sessions of some turns that begin with the same four pages. Each turn's prompt is the previous one, its
// output, and new tokens. Turns of one session follow one another; sessions overlap.
std::vector<RetrievalRequest> turns_of_sessions(uint32_t page_tokens, uint32_t sessions, uint32_t turns_each,
                                                uint64_t seed);

// The policy configuration of `setting`. `llm`: the model whose KV heads have their own entries.
CoreConfig core_of(const RetrievalSetting& setting, const LlmSpec* llm = nullptr);

}  // namespace kvtwin::testing

#endif  // KVTWIN_TESTS_UNIT_CPU_RETRIEVAL_RETRIEVAL_RUN_H_
