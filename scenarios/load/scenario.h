// A loaded scenario: every field is resolved, checked as far as possible without running, and located, so
// that later errors can name the line to change.
//
// Order of precedence, weakest first: defaults, the preset, the file, --set and --seed.

#ifndef KVTWIN_SCENARIOS_LOAD_SCENARIO_H_
#define KVTWIN_SCENARIOS_LOAD_SCENARIO_H_

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/result.h"
#include "traces/proto/scenario.pb.h"

namespace kvtwin {

// All errors of a scenario, in the order of its text.
using Errors = std::vector<Error>;

struct Scenario {
  v1::Scenario values;                        // every field set
  std::string path;                           // path of the scenario file, as given
  std::map<std::string, std::string> places;  // field path -> file:line:column, or --set=...

  // The place where `field` ("limits.requests_max") is set; the file and the field if it has its default.
  std::string where(const std::string& field) const;
  bool on_command_line(const std::string& field) const;  // set with --set
  // `written` as a path to open: resolved relative to the scenario file, with $KVTWIN_DATA replaced.
  std::string file(const std::string& written) const;
};

// `given` is a path or the name of a shipped scenario (shipped.h). Each of `sets` is "field.path=value";
// repeated fields take a comma-separated list. A path among the values is relative to the working directory,
// or to the scenario file if it does not exist in the working directory.
tl::expected<Scenario, Errors> load_scenario(const std::string& given, const std::vector<std::string>& sets);
// The same from text; `path` is used in messages and as the base of relative paths.
tl::expected<Scenario, Errors> parse_scenario(std::string_view text, const std::string& path,
                                              const std::vector<std::string>& sets);

// The outcomes file of simulation.recorded_run, as a path to open; "": nothing is recorded.
std::string recorded_outcomes_file(const Scenario& scenario);

// The scenario with every default written out, which repeats the run. Paths are absolute, or start with
// $KVTWIN_DATA.
std::string resolved_textproto(const Scenario& scenario);

// $KVTWIN_DATA, or ../shared/data next to the project that `scenario_path` belongs to.
std::string data_dir(const std::string& scenario_path);

// Checks that the names of all choices exist and that the numbers are valid. Appends to *errors.
void check_scenario(const Scenario& scenario, Errors* errors);

// The scenario with every default; `preset` is "" or a preset's name. Empty if there is no such preset.
v1::Scenario default_scenario(std::string_view preset);
std::vector<std::string> preset_names();

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_LOAD_SCENARIO_H_
