// plural() makes the noun that follows a count in messages: "1 engine", "2 engines".

#ifndef KVTWIN_ENGINE_BASE_PLURAL_H_
#define KVTWIN_ENGINE_BASE_PLURAL_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace kvtwin {

// `noun`, with an s unless `count` is 1.
inline std::string plural(uint64_t count, std::string_view noun) {
  return std::string(noun) + (count == 1 ? "" : "s");
}

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_BASE_PLURAL_H_
