// The fingerprint of everything that a run depends on. It names the run's directory: a repeated run finds its
// own result, and two runs that differ in anything never use the same directory.

#ifndef KVTWIN_SCENARIOS_LOAD_INPUTS_H_
#define KVTWIN_SCENARIOS_LOAD_INPUTS_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "engine/base/result.h"
#include "scenarios/load/scenario.h"

namespace kvtwin {

// A hash of bytes in the order in which they are added. Not collision-resistant against an adversary.
class Fingerprint {
 public:
  void add(std::string_view bytes);
  // Adds the content of a file, or of all files below a folder in order of their names.
  Result<void> add_path(const std::string& path);
  uint64_t value() const { return state_; }

 private:
  Result<void> add_file(const std::string& path);
  uint64_t state_ = 0;
};

// Hashes of file contents by path, to read files once for many scenarios. Valid while the files do not
// change.
using PathDigests = std::map<std::string, uint64_t>;

// Covers the scenario (except its name and description), trace, profile, catalog entries and version. `read`,
// if not null, supplies the digests of known files and receives those of the others.
Result<uint64_t> inputs_fingerprint(const Scenario& scenario, PathDigests* read = nullptr);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_LOAD_INPUTS_H_
