// `kvtwin device`: checks files of GPUs and nodes, and writes files to start from.

#ifndef KVTWIN_SCENARIOS_CLI_CMD_DEVICE_H_
#define KVTWIN_SCENARIOS_CLI_CMD_DEVICE_H_

namespace CLI {
class App;
}

namespace kvtwin {

// Adds the command. `status` receives the exit status when it runs; it must outlive `app`.
void add_device_command(CLI::App& app, int* status);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_CLI_CMD_DEVICE_H_
