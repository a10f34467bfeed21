// kvtwin trace: import, export, inspect and cut traces.

#ifndef KVTWIN_SCENARIOS_CLI_CMD_TRACE_H_
#define KVTWIN_SCENARIOS_CLI_CMD_TRACE_H_

namespace CLI {
class App;
}

namespace kvtwin {

// `exit_status` receives 0 or 2 when the command runs, and must outlive `app`. More subcommands can be
// hung under app.get_subcommand("trace").
void add_trace_command(CLI::App& app, int* exit_status);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_CLI_CMD_TRACE_H_
