// ScriptClient is an adversarial Client. Its sessions' requests share prefixes (whole pages, parts of pages,
// other sessions' pages), spawn sub-sessions when a token appears, are cancelled at any time, and include
// requests that no engine can serve. It checks the notifications that it receives.
//
// All draws are made at the start, so coalescing and timing change none of them. Request number c of session
// s is RequestId{s * requests_per_session + c}.

#ifndef KVTWIN_TESTS_SUPPORT_SCRIPT_CLIENT_H_
#define KVTWIN_TESTS_SUPPORT_SCRIPT_CLIENT_H_

#include <set>
#include <tuple>
#include <vector>

#include "engine/base/prng.h"
#include "engine/runtime/client.h"
#include "tests/support/page_checker.h"

namespace kvtwin::testing {

struct ScriptClientOptions {
  uint64_t seed = 0;
  uint32_t sessions = 4;
  uint32_t requests_per_session = 4;
  uint32_t unit_tokens = 16;
  uint32_t prompt_tokens_max = 100;  // that a request adds to the shared prefix
  uint32_t output_tokens_max = 20;   // 0 is drawn as well
  int64_t gap_ns_max = 1'000;        // before sessions start and between requests; 0 is drawn often
  uint32_t cancels_per_100 = 0;
  uint32_t spawns_per_100 = 0;  // requests that start the next idle session when a token appears
  bool early_ends = false;      // the backend may sample end-of-sequence
  bool late_rejects = false;    // an engine with less memory may reject after another has computed the prompt
  bool roles = false;           // prompts carry the roles of their tokens
  bool spans = false;           // prompts carry what they ask, by the same roles
  uint32_t hints_per_100 = 0;   // requests followed by a hint of the next one, at a right or wrong time
};

class ScriptClient final : public Client, public TokenSource {
 public:
  // The final state of a request.
  struct Answer {
    Instant at{};
    uint32_t tokens = 0;
    enum class Kind : uint8_t { kNone, kFinished, kCancelled, kRejected } kind = Kind::kNone;
    friend bool operator==(const Answer&, const Answer&) = default;
  };

  explicit ScriptClient(const ScriptClientOptions& options);

  Instant wake_at() const override;
  void wake(Instant now, ClientEvents* events) override;
  void tokens_emitted(Instant now, RequestId request, uint32_t tokens, ClientEvents* events) override;
  void request_finished(Instant now, RequestId request, uint32_t tokens, bool cancelled,
                        ClientEvents* events) override;
  void request_rejected(Instant now, RequestId request, ClientEvents* events) override;

  uint64_t token(RequestId request, uint32_t position) const override;

  // By request; kNone if the request was never sent.
  const std::vector<Answer>& answers() const { return answers_; }
  // True if every request that was sent has been answered.
  bool content() const { return unanswered_ == 0; }

 private:
  struct Request {
    uint32_t prompt = 0;
    uint32_t output = 0;
    std::vector<UnitRun> identity;
    std::vector<uint32_t> triggers;
    std::vector<RoleRun> roles;
    PromptSpans spans;
    int64_t gap_ns = 0;
    uint32_t spawns = UINT32_MAX;   // session to start
    uint32_t spawn_at = 0;          // number of tokens that triggers it
    int64_t cancel_after_ns = -1;   // -1: no cancellation by time
    uint32_t cancel_at_tokens = 0;  // 0: no cancellation by tokens
  };
  enum class Kind : uint8_t { kReady, kCancel };
  using Action = std::tuple<Instant, uint32_t, Kind>;  // request

  void draw_session(uint32_t session, Prng* prng);
  void draw_identity(uint32_t session, uint32_t number, Request* request, Prng* prng);
  void draw_roles(uint32_t number, Request* request) const;
  void draw_mischief(uint32_t session, Request* request, Prng* prng);
  void schedule(Instant now, uint32_t request, int64_t after, Kind kind, ClientEvents* events);
  void perform(Instant now, uint32_t request, Kind kind, ClientEvents* events);
  void next_request(Instant now, uint32_t request, ClientEvents* events);

  const ScriptClientOptions options_;
  std::vector<Request> requests_;
  std::vector<Answer> answers_;
  std::vector<uint32_t> pending_;  // tokens last notified, by request
  std::vector<bool> sent_, spawned_;
  std::set<Action> actions_;
  uint32_t unanswered_ = 0;
  bool started_ = false;
};

}  // namespace kvtwin::testing

#endif  // KVTWIN_TESTS_SUPPORT_SCRIPT_CLIENT_H_
