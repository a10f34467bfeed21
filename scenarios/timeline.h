// Timeline keeps what ran between two instants, as trace events that ui.perfetto.dev and
// chrome://tracing open: one process per engine, with its steps, transfers, calls and counts.

#ifndef KVTWIN_SCENARIOS_TIMELINE_H_
#define KVTWIN_SCENARIOS_TIMELINE_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "engine/base/result.h"
#include "engine/driver.h"

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

class Timeline : public Observer {
 public:
  // `operations` may be null; else it is asked for every step.
  Timeline(TimelineWindow window, size_t engines, OperationsOfStep operations = {});

  void saw_event(Instant now, EngineId engine, const Event& event) override;
  void saw_command(Instant now, const Command& command) override;
  void saw_state(Instant now, EngineId engine, const Core& core) override;

  // The JSON file.
  std::string finish() const;

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
  void span(const char* name, int row, size_t engine, Instant from, Instant to, const std::string& args);
  void mark(const char* phase, const char* name, size_t engine, Instant at, CallId call);

  const TimelineWindow window_;
  const OperationsOfStep operations_;
  std::vector<Engine> engines_;
  std::vector<std::string> rows_;
};

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_TIMELINE_H_
