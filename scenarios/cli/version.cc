#include "scenarios/cli/version.h"

#include <fmt/format.h>

extern const char* const kvtwin_commit;  // cmake/write_commit.cmake

namespace kvtwin {

std::string version_text() {
  return fmt::format(
      "kvtwin {} (commit {})\n"
      "  simulated backend   {}\n"
      "  cpu backend         yes\n"
      "  cuda backend        {}\n"
      "  tar archives        {}\n"
      "  sweeps (SQLite)     {}\n",
      KVTWIN_VERSION, kvtwin_commit, KVTWIN_SIMGRID_VERSION, KVTWIN_CUDA_VERSION, KVTWIN_ARCHIVE_VERSION,
      KVTWIN_SQLITE_VERSION);
}

}  // namespace kvtwin
