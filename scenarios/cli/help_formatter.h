// The help of commands whose options CLI11 knows, in the form of the hand-written texts (help.cc):
//
//   Reads a foreign trace or a log of requests and writes a kvtwin trace.
//
//     kvtwin trace import vllm-bench.json --out=out/bench.kvtrace
//
//     FORMAT                a format (may be left out)
//     --out=TEXT            the trace to write; required
//
// A description begins with its example: "Example: kvtwin ...\n\n".

#ifndef KVTWIN_SCENARIOS_CLI_HELP_FORMATTER_H_
#define KVTWIN_SCENARIOS_CLI_HELP_FORMATTER_H_

#include <CLI/CLI.hpp>
#include <string>

namespace kvtwin {

// "kvtwin trace import".
std::string command_path(const CLI::App& app);

class HelpFormatter final : public CLI::FormatterBase {
 public:
  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override;
};

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_CLI_HELP_FORMATTER_H_
