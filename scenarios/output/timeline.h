// Timeline records what runs between two instants: each engine's steps, transfers, requests and counts. It
// writes JSON trace events, which chrome://tracing and ui.perfetto.dev open and the report draws, and
// Perfetto's protocol buffers.

#ifndef KVTWIN_SCENARIOS_OUTPUT_TIMELINE_H_
#define KVTWIN_SCENARIOS_OUTPUT_TIMELINE_H_

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "engine/base/result.h"
#include "engine/runtime/driver.h"

namespace kvtwin {

struct TimelineWindow {
  Instant from{}, to{};
};

// "10..12.5", in seconds since the start of the run.
Result<TimelineWindow> parse_window(const std::string& text);

// One operation of a step on the device; times are relative to the step's start.
struct StepOperation {
  const char* name = "";
  uint32_t layer = 0;
  Duration from{}, to{};
};
// Returns the operations of a step. It may be called once per step.
using OperationsOfStep = std::function<std::vector<StepOperation>(EngineId engine, StepId step)>;

enum class TimelineRow : uint8_t { kSteps = 1, kIn, kOut, kRequests, kOperations };
const char* name_of(TimelineRow row);

// One recorded item.
struct TimelineMark {
  enum class Kind : uint8_t {
    kSpan,          // `name` ran from `from` to `to`
    kBegin,         // `request` is ready
    kInstantEvent,  // `name` happened to `request`
    kEnd,           // `request` ended
    kCounts,        // values that hold from `from` on
  };
  struct Number {
    const char* name = nullptr;
    uint64_t value = 0;
  };
  Kind kind{};
  TimelineRow row{};  // of all kinds but kCounts
  uint16_t engine = 0;
  const char* name = "";
  Instant from{}, to{};
  RequestId request{};
  std::array<Number, 5> numbers{};  // up to the first without a name
  const char* result = nullptr;     // of a transfer
};

class Timeline : public Observer {
 public:
  // `operations` may be null; otherwise it is called for every step.
  Timeline(TimelineWindow window, size_t engines, OperationsOfStep operations = {});

  void saw_event(Instant now, EngineId engine, const Event& event) override;
  void saw_command(Instant now, const Command& command) override;
  void saw_state(Instant now, EngineId engine, const Core& core) override;

  // timeline.json.
  std::string json() const;
  // timeline.perfetto-trace: TracePackets of one sequence, in order of time. Overlapping slices get tracks of
  // their own, because the slices of one Perfetto track must nest.
  std::string perfetto() const;

 private:
  struct Launch {
    uint64_t step = 0, end = 0;
    Instant at{};
    uint32_t decodes = 0, chunks = 0, tokens = 0, passes = 0;
  };
  struct Transfer {
    TransferId id{};
    Instant at{};
    bool in = false;
    size_t pages = 0;
  };
  struct Engine {
    std::deque<Launch> launches;
    std::vector<Transfer> transfers;
    Instant last_end{};
  };

  bool inside(Instant from, Instant to) const { return to >= window_.from && from <= window_.to; }
  void mark(TimelineMark::Kind kind, const char* name, EngineId engine, Instant at, RequestId request);

  const TimelineWindow window_;
  const OperationsOfStep operations_;
  std::vector<Engine> engines_;
  std::vector<TimelineMark> marks_;
};

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_OUTPUT_TIMELINE_H_
