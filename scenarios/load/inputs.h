// The fingerprint of all that a run depends on: it names the run's directory, so a repeated run finds
// its own result, and two that differ in anything never share one.

#ifndef KVTWIN_SCENARIOS_LOAD_INPUTS_H_
#define KVTWIN_SCENARIOS_LOAD_INPUTS_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "engine/base/result.h"
#include "scenarios/load/scenario.h"

namespace kvtwin {

// Of bytes, in any order of requests that is the same. Not for adversaries.
class Fingerprint {
 public:
  void add(std::string_view bytes);
  // Content of a file, or of all files below a folder in order of their names.
  Result<void> add_path(const std::string& path);
  uint64_t value() const { return state_; }

 private:
  Result<void> add_file(const std::string& path);
  uint64_t state_ = 0;
};

// What files hold, by path: for many scenarios of the same files. As good as the files stay as they are.
using PathDigests = std::map<std::string, uint64_t>;

// Scenario (its name and description apart), trace, profile, catalog entries and version. `read`, if given,
// says what files hold that it knows, and learns the others.
Result<uint64_t> inputs_fingerprint(const Scenario& scenario, PathDigests* read = nullptr);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_LOAD_INPUTS_H_
