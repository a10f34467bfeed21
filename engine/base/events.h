// What happens. Together with CoreConfig, the sequence of (Instant, Event) is the *whole* input of
// the policy: a recorded sequence replays bit for bit.
//
// Structs are small and of fixed size; spans point into the sender's buffers and are valid until the
// sender is called again.

#ifndef KVTWIN_ENGINE_BASE_EVENTS_H_
#define KVTWIN_ENGINE_BASE_EVENTS_H_

#include <compare>
#include <cstdint>
#include <span>
#include <variant>

#include "engine/base/identity.h"
#include "engine/base/tags.h"
#include "engine/base/units.h"

namespace kvtwin {

// Names a request by what the trace says of it: the index-th LLM request of its session, in the order of the
// trace. Outcomes and random draws are keyed by this and not by RequestId, which is dealt in the order of
// sending and so depends on times. A request that the Client sends again after a rejection keeps its key.
struct RequestKey {
  SessionId session{};
  uint32_t index = 0;
  friend auto operator<=>(const RequestKey&, const RequestKey&) = default;
};

// A request may start: everything it waits for has happened. Sent by the Client, placed by the Router.
// output_tokens is forced (replay); a policy may use it to know when the request ends, never to rank.
struct RequestReady {
  RequestId request{};
  SessionId session{};
  uint32_t prompt_tokens = 0;
  uint32_t output_tokens = 0;
  // Positions [0, prompt_tokens + output_tokens) in whole units, a last partial unit left out.
  std::span<const UnitRun> identity;
  // Output token counts, ascending, at which the Client must be told (TokensEmitted). 1 is implied.
  std::span<const uint32_t> triggers;
  // What the prompt's tokens are, in order; what is left out has no role. Only where the precision policy
  // asks.
  std::span<const RoleRun> roles{};
  uint32_t turn = 0;  // of the request; roles' turns are at most this
  // Handed over by another engine (commands.h): `emitted` output tokens exist, and the KV of the prompt lies
  // in these pages of `from`, in order of position. 0: the request is new.
  uint32_t emitted = 0;
  EngineId from{};
  std::span<const PageId> source{};
  uint32_t index = 0;  // in the session (RequestKey)

  RequestKey key() const { return {session, index}; }
};

// The pages of a request that this engine handed over have been read, or nobody wants them any more.
struct PagesTaken {
  EngineId engine{};
  RequestId request{};
};

// The client no longer wants the request. The request ends at the next step boundary; FinishRequest answers.
struct RequestCancelled {
  RequestId request{};
};

struct SessionHint {
  enum class Kind : uint8_t { kSessionEnds, kNextRequestExpected };
  SessionId session{};
  Kind kind{};
  Duration expected_gap{};  // kNextRequestExpected: the client's own estimate, not an oracle
};

// Data-dependent answers of one step, summed over its requests
// (docs/design/backend-interface-and-digest.md#outcomes).
struct StepOutcome {
  Duration host{};         // part of the step's time in which the device waited for the host
  Duration exposed{};      // part in which compute waited for a transfer of this step
  Duration hidden{};       // transfer time of this step that ran beside compute
  uint64_t bytes_in = 0;   // host to gpu, in-step operations
  uint64_t bytes_out = 0;  // gpu to host
};

// Answer to one Compression (commands.h): what is readable of the request from now on. A backend may leave it
// out where `keep` was given and the layout moves KV entries: then there is nothing that the policy does not
// know.
struct CompressionOutcome {
  RequestId request{};
  std::span<const uint32_t> counts;  // by head group: KV entries that each head has left, of all it had
  std::span<const uint64_t> live;    // layouts that keep slots: bit i says that position begin + i is left
};

// Single steps [step, step + ends.size()) of `engine` have ended, at the instants `ends`; the event's
// own instant is the last of them.
struct StepDone {
  EngineId engine{};
  StepId step{};
  std::span<const Instant> ends;
  StepOutcome outcome;             // summed over the steps
  std::span<const RequestId> eos;  // requests that sampled end-of-sequence in the last of the steps
  std::span<const CompressionOutcome>
      retained{};  // of the compressions of the last of the steps, in their order
};

struct TransferDone {
  EngineId engine{};
  TransferId transfer{};
};

// Nothing was written that anyone may read. The policy decides what becomes of the requests that wait.
struct TransferFailed {
  EngineId engine{};
  TransferId transfer{};
};

struct Timer {
  EngineId engine{};  // kClient: the Client's own
  TimerId timer{};
};

// The Client is addressed like an engine where only backends look (timers).
constexpr EngineId kClient{UINT16_MAX};

using Event = std::variant<RequestReady, RequestCancelled, SessionHint, StepDone, TransferDone,
                           TransferFailed, Timer, PagesTaken>;

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_BASE_EVENTS_H_
