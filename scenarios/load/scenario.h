// A scenario, loaded: every field resolved, checked as far as it can be without running, and located, so
// that later errors can say which line to change.
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

// All that is wrong with a scenario, in the order of its text.
using Errors = std::vector<Error>;

struct Scenario {
  v1::Scenario values;                        // every field set
  std::string path;                           // of its file, as given
  std::map<std::string, std::string> places;  // field path -> file:line:column, or --set=...

  // Where `field` ("limits.requests_max") was set; the file and the field if it has its default.
  std::string where(const std::string& field) const;
  bool on_command_line(const std::string& field) const;  // by --set
  // A path of the scenario, ready to open: relative to its file, $KVTWIN_DATA replaced.
  std::string file(const std::string& written) const;
};

// `given`: a path or the name of a shipped scenario (shipped.h). `sets`: each "field.path=value". Repeated
// fields take a comma-separated list; a path is relative to the working directory, or to the scenario file
// where the working directory does not have it.
tl::expected<Scenario, Errors> load_scenario(const std::string& given, const std::vector<std::string>& sets);
// The same from text; `path` is for messages and for what relative paths are relative to.
tl::expected<Scenario, Errors> parse_scenario(std::string_view text, const std::string& path,
                                              const std::vector<std::string>& sets);

// The outcomes of simulation.recorded_run, ready to open; "": nothing is recorded.
std::string recorded_outcomes_file(const Scenario& scenario);

// With every default, so that running it again repeats the run. Paths are absolute, or of $KVTWIN_DATA.
std::string resolved_textproto(const Scenario& scenario);

// $KVTWIN_DATA, or ../shared/data beside the project that `scenario_path` belongs to.
std::string data_dir(const std::string& scenario_path);

// Whether the choices by name exist and the numbers make sense. Appends to *errors.
void check_scenario(const Scenario& scenario, Errors* errors);

// The scenario that has every default; `preset` is "" or a preset's name. Empty if there is no such preset.
v1::Scenario default_scenario(std::string_view preset);
std::vector<std::string> preset_names();

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_LOAD_SCENARIO_H_
