// Shared by all commands: exit statuses, printing of errors, and the registration of each command.

#ifndef KVTWIN_SCENARIOS_CLI_CLI_H_
#define KVTWIN_SCENARIOS_CLI_CLI_H_

#include <string>
#include <vector>

#include "engine/base/result.h"
#include "scenarios/output/summary.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace kvtwin {

enum ExitStatus : int {
  kExitDone = 0,
  kExitNo = 1,            // the answer is no
  kExitInvalidInput = 2,  // command line, scenario or trace
  kExitEnvironment = 3,   // disk full, out of memory
  kExitNoBackend = 4,     // this build lacks the backend
};

// Print one line per error to stderr and return `status`, for use in a return statement.
int complain(const Error& error, int status = kExitInvalidInput);
int complain(const std::vector<Error>& errors, int status = kExitInvalidInput);

// Replaces the file. Errors: it cannot be written.
Result<void> write_text(const std::string& path, const std::string& text);

Result<OutputFormat> parse_format(const std::string& text);
// True for digits only, below 2^64.
bool is_whole_number(const std::string& text);
// The word as a shell takes it: in single quotes if it has characters that a shell reads.
std::string shell_word(const std::string& word);
// Splits "a,b,c"; nothing between two commas is an empty word.
std::vector<std::string> split_list(const std::string& text);

// Adds an option that may be given several times, each time with one value.
CLI::Option* add_repeated(CLI::App* command, const std::string& name, std::vector<std::string>* into);

// Each function adds its command. `status` receives the exit status when the command runs, and must outlive
// `app`.
void add_run_command(CLI::App& app, int* status);
void add_replay_command(CLI::App& app, int* status);
void add_compare_command(CLI::App& app, int* status);
void add_model_command(CLI::App& app, int* status);
void add_device_command(CLI::App& app, int* status);
void add_import_command(CLI::App& app, int* status);
void add_calibrate_command(CLI::App& app, int* status);
void add_evaluate_command(CLI::App& app, int* status);
void add_calibrate_device_command(CLI::App* calibrate, int* status);
void add_calibrate_server_command(CLI::App* calibrate, int* status);
void add_doctor_command(CLI::App& app, int* status);
void add_explain_command(CLI::App& app, int* status);
void add_inspect_policy_command(CLI::App& app, int* status);
void add_report_command(CLI::App& app, int* status);
void add_export_command(CLI::App& app, int* status);
void add_list_command(CLI::App& app, int* status);
void add_observe_command(CLI::App& app, int* status);
void add_plan_command(CLI::App& app, int* status);
void add_serve_command(CLI::App& app, int* status);
void add_validate_command(CLI::App& app, int* status);
void add_sweep_command(CLI::App& app, int* status);  // in builds with SQLite
// Shell completion and the manual page, made of the commands and options of `app` as they are when it runs.
void add_completion_command(CLI::App& app, int* status);
void add_man_command(CLI::App& app, int* status);

// Replaces common spellings by this tool's: -h and help [COMMAND] by --help, -V and version by --version.
std::vector<std::string> usual_words(std::vector<std::string> words);

// The help of a command, as in "kvtwin trace import", or of "kvtwin" itself. It stands in
// docs/reference/cli.md.
std::string help_text(const std::string& path);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_CLI_CLI_H_
