#include "engine/base/planted.h"

#include <cstdlib>

namespace kvtwin {

// $KVTWIN_PLANT names the bug.
bool planted(std::string_view bug) {
  static const char* const chosen = std::getenv("KVTWIN_PLANT");
  return chosen != nullptr && bug == chosen;
}

}  // namespace kvtwin
