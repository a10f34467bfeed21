// kvtwin: the command line. It is strict: long options only, values with '=', no unknown words.

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "models/files/textproto.h"
#include "scenarios/cli/cli.h"
#include "scenarios/cli/cmd_trace.h"
#include "scenarios/cli/version.h"
#include "scenarios/load/foreign_words.h"

namespace kvtwin {
namespace {

std::string nearest(const std::string& word, const std::vector<std::string>& known) {
  if (const ForeignWord* row = foreign_word(word); row != nullptr && word.starts_with("--"))
    return foreign_hint(word) + (row->ours.empty() ? "" : ", as in --set=" + std::string(row->ours) + "=...");
  if (known.empty()) return "options follow their command: kvtwin run SCENARIO --format=json";
  const std::string close = did_you_mean(word, known);
  return close.empty() ? fmt::format("known are: {}", fmt::join(known, ", ")) : close;
}

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

std::vector<std::string> command_names(CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({})) names.push_back(command->get_name());
  return names;
}

// Checks what CLI11 would accept or report in its own words. Appends the named commands to *path, as in
// "kvtwin trace import". Prints requested help and sets *done.
Result<void> check_words(CLI::App& root, const std::vector<std::string>& words, std::string* path,
                         bool* done) {
  CLI::App* app = &root;
  for (const std::string& word : words) {
    if (word == "--help") {
      fmt::print("{}", help_text(*path));
      *done = true;
      return {};
    }
    if (word == "--version" && app == &root) {
      fmt::print("{}", version_text());
      *done = true;
      return {};
    }
    if (word.rfind("--", 0) == 0) {
      const std::string name = word.substr(0, word.find('='));
      const CLI::Option* option = app->get_option_no_throw(name);
      if (option == nullptr) {
        return make_error(*path, fmt::format("no option \"{}\"", name), nearest(name, option_names(*app)));
      }
      const bool takes_value = option->get_items_expected_max() > 0;
      if (takes_value && word.find('=') == std::string::npos) {
        return make_error(*path, fmt::format("{} has no value", name), fmt::format("write {}=...", name));
      }
      // CLI11 would accept "-1", and numbers of any length.
      if (takes_value && option->get_type_name() == "UINT" && !is_whole_number(word.substr(name.size() + 1)))
        return make_error(word, "is not a whole number from 0 to 18446744073709551615");
    } else if (word.size() > 1 && word[0] == '-') {
      return make_error(*path, fmt::format("no option \"{}\"", word), "options are long: --name=value");
    } else if (!app->get_subcommands({}).empty()) {
      const std::vector<CLI::App*> named =
          app->get_subcommands([&](CLI::App* one) { return one->get_name() == word; });
      if (named.empty()) {
        return make_error(*path, fmt::format("no command \"{}\"", word), nearest(word, command_names(*app)));
      }
      app = named.front();
      *path += " " + word;
    }
  }
  return {};
}

int run_main(const std::vector<std::string>& given) {
  const std::vector<std::string> words = usual_words(given);
  CLI::App app("kvtwin", "kvtwin");
  app.set_help_flag();  // commands inherit it
  int status = kExitDone;
  add_run_command(app, &status);
  add_replay_command(app, &status);
  add_compare_command(app, &status);
#ifdef KVTWIN_HAVE_SQLITE
  add_sweep_command(app, &status);
#endif
  add_plan_command(app, &status);
  add_trace_command(app, &status);
  add_model_command(app, &status);
  add_device_command(app, &status);
  add_calibrate_command(app, &status);
  add_evaluate_command(app, &status);
  add_validate_command(app, &status);
  add_doctor_command(app, &status);
  add_explain_command(app, &status);
  add_import_command(app, &status);
  add_export_command(app, &status);
  add_observe_command(app, &status);
  add_serve_command(app, &status);
  add_inspect_policy_command(app, &status);
  add_report_command(app, &status);
  add_list_command(app, &status);
  add_completion_command(app, &status);
  add_man_command(app, &status);
  app.require_subcommand(1);
  if (words.empty()) {
    fmt::print("{}", help_text("kvtwin"));
    return kExitDone;
  }
  bool done = false;
  std::string path = "kvtwin";
  if (Result<void> ok = check_words(app, words, &path, &done); !ok) return complain(ok.error());
  if (done) return kExitDone;
  try {
    app.parse(std::vector<std::string>(words.rbegin(), words.rend()));  // CLI11 wants them reversed
  } catch (const CLI::ArgumentMismatch& error) {
    const std::string text = error.what();
    // CLI11: "--need: At Most 1 required but received 2".
    const size_t at = text.find(": At Most 1 required");
    if (at == std::string::npos) return complain(Error{path, text, path + " --help"});
    return complain(Error{path, fmt::format("{} is given more than once", text.substr(0, at)), "keep one"});
  } catch (const CLI::ParseError& error) {
    return complain(Error{path, error.what(), path + " --help"});
  }
  return status;
}

// Opens standard streams that are closed. Otherwise the next opened file would get the number of such a
// stream and everything printed to it. A closed standard output becomes /dev/full, so that printing to it
// fails.
void hold_standard_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(stream, F_GETFD) != -1) continue;
    const int held = open(stream == STDOUT_FILENO ? "/dev/full" : "/dev/null", O_RDWR);
    if (held >= 0 && held != stream) {
      dup2(held, stream);
      close(held);
    }
  }
}

// Turns success into an environment failure if standard output could not be written.
int written(int status) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return status;
  fmt::print(stderr, "standard output: cannot be written: {}\n", std::strerror(errno));
  return kExitEnvironment;
}

}  // namespace
}  // namespace kvtwin

int main(int argc, char** argv) {
  kvtwin::hold_standard_streams();
  try {
    return kvtwin::written(kvtwin::run_main(std::vector<std::string>(argv + 1, argv + argc)));
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "out of memory; use a smaller scenario, or a machine with more\n");
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
  }
  return kvtwin::kExitEnvironment;
}
