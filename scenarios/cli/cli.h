// What all commands share: exit statuses, how errors are printed, and what each command registers.

#ifndef KVTWIN_SCENARIOS_CLI_CLI_H_
#define KVTWIN_SCENARIOS_CLI_CLI_H_

#include <string>
#include <vector>

#include "engine/base/result.h"
#include "scenarios/output/summary.h"

namespace CLI {
class App;
}

namespace kvtwin {

enum ExitStatus : int {
  kExitDone = 0,
  kExitNo = 1,            // the answer is no
  kExitInvalidInput = 2,  // command line, scenario or trace
  kExitEnvironment = 3,   // disk full, out of memory
  kExitNoBackend = 4,     // this build lacks the backend
};

// One line each on stderr. Return `status`, to be handed on.
int complain(const Error& error, int status = kExitInvalidInput);
int complain(const std::vector<Error>& errors, int status = kExitInvalidInput);

// Replaces the file. Errors: it cannot be written.
Result<void> write_text(const std::string& path, const std::string& text);

Result<OutputFormat> parse_format(const std::string& text);
// Digits alone, below 2^64.
bool is_whole_number(const std::string& text);
// "a,b,c"; nothing between commas is an empty word.
std::vector<std::string> split_list(const std::string& text);

// Each adds its command; `status` receives the exit status when it runs, and must outlive `app`.
void add_run_command(CLI::App& app, int* status);
void add_replay_command(CLI::App& app, int* status);
void add_compare_command(CLI::App& app, int* status);
void add_calibrate_command(CLI::App& app, int* status);
void add_evaluate_command(CLI::App& app, int* status);
void add_calibrate_device_command(CLI::App* calibrate, int* status);
void add_calibrate_methods_command(CLI::App* calibrate, int* status);
void add_explain_command(CLI::App& app, int* status);
void add_inspect_policy_command(CLI::App& app, int* status);
void add_report_command(CLI::App& app, int* status);
void add_list_command(CLI::App& app, int* status);
void add_plan_command(CLI::App& app, int* status);
void add_validate_command(CLI::App& app, int* status);
void add_sweep_command(CLI::App& app, int* status);  // of builds with SQLite

// The words that everybody tries first, as this tool spells them: -h and help [COMMAND] are --help, -V and
// version are --version.
std::vector<std::string> usual_words(std::vector<std::string> words);

// The help of a command, hand-written; "" if it has none of its own. `command` "" is kvtwin itself.
std::string help_text(const std::string& command);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_CLI_CLI_H_
