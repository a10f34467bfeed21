// Result<T> is returned by a function whose input comes from the user and may be invalid.
//
// An Error reads `where: what, with the value; what would be right`. It is passed up to the command, which
// prints it and exits with 2. Bugs of our own are reported by KVT_CHECK (check.h).

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
