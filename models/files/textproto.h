// Reads textproto files, with error messages that say where and what would be right.

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

// Largest catalog file, profile table or config that is read.
constexpr size_t kModelFileBytesMax = size_t{64} << 20;

// The whole file, or an Error that names it.
Result<std::string> read_text_file(const std::string& path, size_t bytes_max = kModelFileBytesMax);

// Parses `text` into `message`. The Error lists every error of the text, one per line, each as
// `where:line:column: what`; the first unknown field is followed by the nearest known ones.
Result<void> parse_textproto(std::string_view text, const std::string& where,
                             google::protobuf::Message* message);

// Where the first byte is that belongs to no UTF-8 character; npos: nowhere.
size_t first_bad_utf8(std::string_view text);

// `where:line:column` of the first value of a top-level field, or `where` if the text does not state it. The
// text is one of the message's type.
std::string place_of_field(std::string_view text, const std::string& where,
                           const google::protobuf::Message& message, const std::string& field);

// `message` as text, lists of numbers in one line.
std::string textproto_text(const google::protobuf::Message& message);
// The same as a file, which begins with the schema and the name of the message.
std::string textproto_file(const google::protobuf::Message& message);

// `text` as a string of a textproto, in quotes; control characters become spaces.
std::string textproto_quoted(std::string_view text);

// Up to three of `known` that are close to `word`, best first: `did you mean "a" or "b"`; "": none is close.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& known);

}  // namespace kvtwin

#endif  // KVTWIN_MODELS_FILES_TEXTPROTO_H_
