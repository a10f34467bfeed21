// Reading textproto files with messages that say where and what would be right.

#ifndef KVTWIN_MODELS_FILES_TEXTPROTO_H_
#define KVTWIN_MODELS_FILES_TEXTPROTO_H_

#include <string>
#include <string_view>
#include <vector>

#include "engine/base/result.h"

namespace google::protobuf {
class Message;
}

namespace kvtwin {

// At most this much is read of a catalog file, profile table or config: none comes near it.
constexpr size_t kModelFileBytesMax = size_t{64} << 20;

// The whole file, or an Error that names it.
Result<std::string> read_text_file(const std::string& path, size_t bytes_max = kModelFileBytesMax);

// Parses `text` into `message`. Every error of the text is reported, one per line, each as
// `where:line:column: what`; the first unknown field comes with the nearest known ones.
Result<void> parse_textproto(std::string_view text, const std::string& where,
                             google::protobuf::Message* message);

// Up to three of `known` that are close to `word`, best first: `did you mean "a" or "b"`, or "" if none is.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& known);

}  // namespace kvtwin

#endif  // KVTWIN_MODELS_FILES_TEXTPROTO_H_
