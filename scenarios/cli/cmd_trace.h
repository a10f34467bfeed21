// kvtwin trace: import, export, inspect, cut and synthesise traces.

#ifndef KVTWIN_SCENARIOS_CLI_CMD_TRACE_H_
#define KVTWIN_SCENARIOS_CLI_CMD_TRACE_H_

#include <string>

#include "traces/proto/agent_trace.pb.h"

namespace CLI {
class App;
}

namespace kvtwin {

// `exit_status` receives 0 or 2 when the command runs, and must outlive `app`.
void add_trace_command(CLI::App& app, int* exit_status);
// Add subcommands to `trace`; called by add_trace_command().
void add_trace_synth_command(CLI::App& trace, int* exit_status);
void add_trace_task_command(CLI::App& trace, int* exit_status);

// Prints the content of a trace that was just written to standard output.
void report_written(const std::string& path, const v1::TraceFooter& footer);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_CLI_CMD_TRACE_H_
