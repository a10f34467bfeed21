// Result<T>: what a function returns when the user's input may be wrong.
//
// An Error reads `where: what, with the value; what would be right`. It travels up to the command,
// which prints it and exits 2. Our own bugs go through KVT_CHECK instead (check.h).

#ifndef KVTWIN_ENGINE_BASE_RESULT_H_
#define KVTWIN_ENGINE_BASE_RESULT_H_

#include <string>
#include <tl/expected.hpp>
#include <utility>

namespace kvtwin {

struct Error {
  std::string where;  // file:line:column, a flag, or a field path
  std::string what;   // what is wrong, with the value
  std::string hint;   // what would be right; may be empty

  std::string text() const {
    return where + (where.empty() ? "" : ": ") + what + (hint.empty() ? "" : "; " + hint);
  }
};

template <typename T>
using Result = tl::expected<T, Error>;

inline tl::unexpected<Error> make_error(std::string where, std::string what, std::string hint = {}) {
  return tl::unexpected<Error>(Error{std::move(where), std::move(what), std::move(hint)});
}

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_BASE_RESULT_H_
