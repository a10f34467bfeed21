// Reads JSON that other tools wrote: fields under alternative names, counts as numbers or text, times in any
// usual unit.

#ifndef KVTWIN_TRACES_LOGS_LOG_JSON_H_
#define KVTWIN_TRACES_LOGS_LOG_JSON_H_

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/result.h"
#include "traces/format/compact_json.h"
#include "traces/logs/request_log.h"

namespace kvtwin {

// The first of the fields that is present and not null; null if `object` is null, no object, or has none.
const nlohmann::json* any_of(const nlohmann::json* object, std::initializer_list<const char*> names);
// The value at object[names[0]][names[1]]...; null if one is missing.
const nlohmann::json* nested(const nlohmann::json* object, std::initializer_list<const char*> names);

// Absent if `value` is null or of another kind. Counts may be whole floats, or digits in a string.
std::optional<uint64_t> count_of(const nlohmann::json* value);
std::optional<double> number_of(const nlohmann::json* value);
std::string text_of(const nlohmann::json* value);

// Unix time in ns from a number of s, ms, us or ns (distinguished by size), or from text as in
// "2026-03-02T09:00:00.25Z" or "2026-03-02 09:00:00" (UTC unless an offset follows).
std::optional<int64_t> unix_ns(const nlohmann::json* value);
// Sets *unread to the value, shortened, if it is recorded but is no such time.
std::optional<int64_t> unix_ns_or(const nlohmann::json* value, std::string* unread);
// Seconds of any clock.
std::optional<int64_t> seconds_ns(const nlohmann::json* value);

// Calls take(object, where) for each object of a file that is JSON Lines, one JSON list, or one JSON object.
using TakeObject = std::function<Result<void>(const nlohmann::json& object, const std::string& where)>;
Result<void> for_each_object(const std::string& path, const CompactKeys& keys, const TakeObject& take);

// The messages of an OpenAI-style list (role, content, tool_calls), of an OpenTelemetry list (role, parts),
// or one raw prompt, which is cut into pieces of equal length so that prompts with a common beginning share
// it.
std::vector<LoggedText> texts_of(const nlohmann::json* messages);
// The prompt of a request body: tools, system text or instructions, then messages, input or prompt.
std::vector<LoggedText> prompt_of_body(const nlohmann::json* body);
// The answer in a response body, or in a message, a list of messages, or a text.
std::optional<LoggedText> answer_of(const nlohmann::json* response);

}  // namespace kvtwin

#endif  // KVTWIN_TRACES_LOGS_LOG_JSON_H_
