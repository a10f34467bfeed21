// `kvtwin model`: shows the catalog's language models, and imports new ones.

#ifndef KVTWIN_SCENARIOS_CLI_CMD_MODEL_H_
#define KVTWIN_SCENARIOS_CLI_CMD_MODEL_H_

namespace CLI {
class App;
}

namespace kvtwin {

// Adds the command. `status` receives the exit status when it runs; it must outlive `app`.
void add_model_command(CLI::App& app, int* status);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_CLI_CMD_MODEL_H_
