// kvtwin import: turns a real server's results into a run's folder.

#ifndef KVTWIN_SCENARIOS_CLI_CMD_IMPORT_H_
#define KVTWIN_SCENARIOS_CLI_CMD_IMPORT_H_

namespace CLI {
class App;
}

namespace kvtwin {

// `status` receives the exit status when the command runs, and must outlive `app`.
void add_import_command(CLI::App& app, int* status);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_CLI_CMD_IMPORT_H_
