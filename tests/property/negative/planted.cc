#include "tests/property/negative/planted.h"

#include <cstdlib>

namespace kvtwin {

bool planted(std::string_view bug) {
  static const char* const chosen = std::getenv("KVTWIN_PLANT");
  return chosen != nullptr && bug == chosen;
}

}  // namespace kvtwin
