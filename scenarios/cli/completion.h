// Shell completion and the manual page. Both are generated from the registered commands and options, so that
// they always list what the program has.

#ifndef KVTWIN_SCENARIOS_CLI_COMPLETION_H_
#define KVTWIN_SCENARIOS_CLI_COMPLETION_H_

namespace CLI {
class App;
}

namespace kvtwin {

// kvtwin completion bash|zsh, and kvtwin man. They describe `app` as it is when they run; `app` must outlive
// them.
void add_completion_command(CLI::App& app, int* status);
void add_man_command(CLI::App& app, int* status);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_CLI_COMPLETION_H_
