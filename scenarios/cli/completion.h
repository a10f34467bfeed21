// Shell completion and the manual page, made from the commands and options that are registered, so that they
// never name another set than the program has.

#ifndef KVTWIN_SCENARIOS_CLI_COMPLETION_H_
#define KVTWIN_SCENARIOS_CLI_COMPLETION_H_

namespace CLI {
class App;
}

namespace kvtwin {

// kvtwin completion bash|zsh, and kvtwin man. They describe `app`, which must outlive them, as it is when
// they run.
void add_completion_command(CLI::App& app, int* status);
void add_man_command(CLI::App& app, int* status);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_CLI_COMPLETION_H_
