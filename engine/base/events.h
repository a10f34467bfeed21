// Events are the input of the policy. Together with CoreConfig, the sequence of (Instant, Event) is its
// *whole* input: a recorded sequence replays bit for bit.
//
// Structs are small and of fixed size. Spans point into the sender's buffers and are valid until the sender
// is called again.

#ifndef KVTWIN_ENGINE_BASE_EVENTS_H_
#define KVTWIN_ENGINE_BASE_EVENTS_H_

#include <compare>
#include <cstdint>
#include <span>
#include <variant>

#include "engine/base/identity.h"
#include "engine/base/prompt_spans.h"
#include "engine/base/tags.h"
#include "engine/base/units.h"

namespace kvtwin {

// Identifies a request by its place in the trace: the index-th LLM request of its session, in trace order.
// Outcomes and random draws are keyed by it, not by RequestId: RequestIds are assigned in order of sending,
// which depends on times. A request that the Client sends again after a rejection keeps its key.
struct RequestKey {
  SessionId session{};
  uint32_t index = 0;
  friend auto operator<=>(const RequestKey&, const RequestKey&) = default;
};

// A request may start: everything it waits for has happened. Sent by the Client, placed by the Router.
// output_tokens is forced (replay). A policy may use it to know when the request ends, never to rank
// requests.
struct RequestReady {
  RequestId request{};
  SessionId session{};
  uint32_t prompt_tokens = 0;
  uint32_t output_tokens = 0;
  // Positions [0, prompt_tokens + output_tokens) in whole units; a last partial unit is omitted.
  std::span<const UnitRun> identity;
  // Output token counts, ascending, at which the Client needs TokensEmitted. 1 is implied.
  std::span<const uint32_t> triggers;
  // Roles of the prompt's tokens, in order; tokens beyond them have no role. Set only if the precision policy
  // needs roles.
  std::span<const RoleRun> roles{};
  uint32_t turn = 0;  // of the request; no role's turn is larger
  // What the prompt asks. Set only if the scorer needs it, and the prompt has roles.
  PromptSpans spans{};
  // Handover (commands.h): `emitted` output tokens exist, and the KV of the prompt is in the pages `source`
  // of engine `from`, in order of position. emitted == 0: the request is new.
  uint32_t emitted = 0;
  EngineId from{};
  std::span<const PageId> source{};
  uint32_t index = 0;  // within the session (RequestKey)

  RequestKey key() const { return {session, index}; }
};

// The pages of a request that this engine handed over have been read, or are no longer needed.
struct PagesTaken {
  EngineId engine{};
  RequestId request{};
};

// The Client cancels the request. It ends at the next step boundary; FinishRequest answers.
struct RequestCancelled {
  RequestId request{};
};

struct SessionHint {
  enum class Kind : uint8_t { kSessionEnds, kNextRequestExpected };
  SessionId session{};
  Kind kind{};
  Duration expected_gap{};  // kNextRequestExpected: the client's own estimate, not an oracle
  uint32_t tool = 0;        // kNextRequestExpected: the tool that the client runs now; 0: none, or unknown
};

// Data-dependent measurements of one step, summed over its requests
// (docs/design/backend-interface-and-digest.md#outcomes).
struct StepOutcome {
  Duration host{};         // part of the step's time in which the device waited for the host
  Duration exposed{};      // part in which compute waited for a transfer of this step
  Duration hidden{};       // transfer time of this step that overlapped compute
  uint64_t bytes_in = 0;   // host to gpu, in-step operations
  uint64_t bytes_out = 0;  // GPU to host
};

// Answer to one Compression (commands.h): the KV entries of the request that stay readable. A backend may
// omit it if `keep` was given and the layout moves KV entries: the policy then knows the result.
struct CompressionOutcome {
  RequestId request{};
  std::span<const uint32_t> counts;  // by head group: KV entries that each head retains, of all it had
  std::span<const uint64_t> live;    // layouts that drop in place: bit i is set if position begin + i is live
};

// Single steps [step, step + ends.size()) of `engine` have ended, at the instants `ends`. The event's own
// instant is the last of them.
struct StepDone {
  EngineId engine{};
  StepId step{};
  std::span<const Instant> ends;
  StepOutcome outcome;             // summed over the steps
  std::span<const RequestId> eos;  // requests that sampled end-of-sequence in the last of the steps
  std::span<const CompressionOutcome> retained{};  // of the last step's compressions, in their order
};

struct TransferDone {
  EngineId engine{};
  TransferId transfer{};
};

// The target pages hold no valid data. The policy decides how the waiting requests continue.
struct TransferFailed {
  EngineId engine{};
  TransferId transfer{};
};

struct Timer {
  EngineId engine{};  // kClient: the Client's own
  TimerId timer{};
};

// The Client's id where a backend expects an engine (timers).
constexpr EngineId kClient{UINT16_MAX};

using Event = std::variant<RequestReady, RequestCancelled, SessionHint, StepDone, TransferDone,
                           TransferFailed, Timer, PagesTaken>;

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_BASE_EVENTS_H_
