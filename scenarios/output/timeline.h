// Timeline keeps what ran between two instants: of each engine its steps, transfers, requests and counts. As
// JSON (trace events, which chrome://tracing and ui.perfetto.dev open; the report draws them) and as
// Perfetto's own protocol buffers.

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

// "10..12.5": seconds of the run.
Result<TimelineWindow> parse_window(const std::string& text);

// One operation of a step on the device; from the step's start.
struct StepOperation {
  const char* name = "";
  uint32_t layer = 0;
  Duration from{}, to{};
};
// Those of a step, once.
using OperationsOfStep = std::function<std::vector<StepOperation>(EngineId engine, StepId step)>;

enum class TimelineRow : uint8_t { kSteps = 1, kIn, kOut, kRequests, kOperations };
const char* name_of(TimelineRow row);

// One thing that was seen.
struct TimelineMark {
  enum class Kind : uint8_t {
    kSpan,          // `name` ran from `from` to `to`
    kBegin,         // `request` is ready
    kInstantEvent,  // `name` happened to `request`
    kEnd,           // it is over
    kCounts,        // from `from` on
  };
  struct Number {
    const char* name = nullptr;
    uint64_t value = 0;
  };
  Kind kind{};
  TimelineRow row{};  // of all but kCounts
  uint16_t engine = 0;
  const char* name = "";
  Instant from{}, to{};
  RequestId request{};
  std::array<Number, 4> numbers{};  // until one without a name
  const char* result = nullptr;     // of a transfer
};

class Timeline : public Observer {
 public:
  // `operations` may be null; else it is asked for every step.
  Timeline(TimelineWindow window, size_t engines, OperationsOfStep operations = {});

  void saw_event(Instant now, EngineId engine, const Event& event) override;
  void saw_command(Instant now, const Command& command) override;
  void saw_state(Instant now, EngineId engine, const Core& core) override;

  // timeline.json.
  std::string json() const;
  // timeline.perfetto-trace: TracePackets of one sequence, in order of time. What overlaps stands in lanes of
  // its own, because slices of one Perfetto track must lie within each other.
  std::string perfetto() const;

 private:
  struct Launch {
    uint64_t step = 0, end = 0;
    Instant at{};
    uint32_t decodes = 0, chunks = 0, tokens = 0;
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
