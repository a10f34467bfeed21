#include "traces/logs/log_json.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

#include "traces/format/source_files.h"
#include "traces/importers/azure.h"

namespace kvtwin {
namespace {

using nlohmann::json;

constexpr size_t kLogStartBytes = 65'536;

// 15:00:00+02:00 -> the offset in ns; the text loses it.
std::optional<int64_t> take_offset(std::string* text) {
  if (text->ends_with('Z')) return text->pop_back(), 0;
  const size_t at = text->find_last_of("+-");
  if (at == std::string::npos || at < 19) return 0;  // a date's own hyphens come before the time
  int hours = 0, minutes = 0;
  const std::string zone = text->substr(at + 1);
  const char* const end = zone.data() + zone.size();
  const auto [after, bad] = std::from_chars(zone.data(), end, hours);
  if (bad != std::errc()) return std::nullopt;
  const char* rest = after != end && *after == ':' ? after + 1 : after;
  if (after == end && zone.size() == 4) minutes = hours % 100, hours /= 100;
  if (rest != end && std::from_chars(rest, end, minutes).ec != std::errc()) return std::nullopt;
  const int64_t ns = (int64_t{hours} * 60 + minutes) * 60'000'000'000;
  const bool east = (*text)[at] == '+';
  text->resize(at);
  return east ? ns : -ns;
}

std::optional<int64_t> parse_time(std::string text) {
  if (text.size() > 10 && (text[10] == 'T' || text[10] == 't')) text[10] = ' ';
  const std::optional<int64_t> offset = take_offset(&text);
  if (!offset) return std::nullopt;
  const Result<int64_t> ns = parse_azure_time(text);
  if (!ns) return std::nullopt;
  return *ns - *offset;
}

// Whole units apart from the fraction: a double has no single nanoseconds at today's Unix times.
std::optional<int64_t> unix_of_number(double value) {
  if (!(value >= 0) || value > 9e18) return std::nullopt;
  const double unit = value >= 1e17 ? 1 : value >= 1e14 ? 1e3 : value >= 1e11 ? 1e6 : 1e9;
  if (value * unit > 9e18) return std::nullopt;
  const double whole = std::floor(value);
  return static_cast<int64_t>(whole) * static_cast<int64_t>(unit) + std::llround((value - whole) * unit);
}

tl::unexpected<Error> bad_json(const std::string& where, const Error& error) {
  return make_error(where, error.where.empty() ? error.what : error.where + " " + error.what,
                    "JSON: one object a line, a list, or one object");
}

Result<void> take_document(const std::string& path, const CompactKeys& keys, const TakeObject& take) {
  const Result<std::string> text = read_document(path);
  if (!text) return tl::unexpected<Error>(text.error());
  const Result<CompactJson> document = parse_compact_json(*text, keys);
  if (!document) return bad_json(path, document.error());
  if (!document->tree.is_array()) return take(document->tree, path);
  size_t index = 0;
  for (const json& object : document->tree) {
    if (auto good = take(object, fmt::format("{}: [{}]", path, index++)); !good) return good;
  }
  return {};
}

// Whether the file is one JSON value over several lines.
Result<bool> is_document(const std::string& path) {
  bool document = false;
  const auto look = [&](const std::string&, std::string_view start) {
    const size_t begin = start.find_first_not_of(" \t\r\n");
    if (begin == std::string_view::npos) return false;
    if (start[begin] == '[') return document = true, false;
    const size_t end = start.find('\n', begin);
    if (end != std::string_view::npos) document = !json::accept(start.substr(begin, end - begin));
    return false;
  };
  const auto any = [](const std::string&) { return true; };
  if (auto good = for_each_start(path, kLogStartBytes, any, look); !good) return tl::unexpected(good.error());
  return document;
}

v1::Role role_of(const std::string& role) {
  if (role == "system" || role == "developer") return v1::INST;
  if (role == "user") return v1::USER;
  if (role == "assistant" || role == "model") return v1::ASSISTANT;
  if (role == "tool" || role == "function") return v1::OBS;
  return v1::ROLE_UNKNOWN;
}

std::string dumped(const json& value) { return value.dump(-1, ' ', false, json::error_handler_t::replace); }

LoggedText text_with_role(const std::string& role, const std::string& content) {
  LoggedText text;
  text.hash = hash_text(role + '\0' + content);
  text.chars = static_cast<uint32_t>(std::min<size_t>(content.size(), UINT32_MAX));
  text.role = role_of(role);
  return text;
}

// The visible text of content that is a string, or a list of parts. Parts without text count as their JSON.
std::string content_text(const json* content) {
  if (content == nullptr || content->is_null()) return {};
  if (content->is_string()) return content->get<std::string>();
  if (!content->is_array()) return dumped(*content);
  std::string out;
  for (const json& part : *content) {
    const std::string text = text_of(any_of(&part, {"text", "content"}));
    out += !text.empty() ? text : part.is_string() ? part.get<std::string>() : dumped(part);
  }
  return out;
}

LoggedText text_of_message(const json& message) {
  if (!message.is_object()) return text_with_role("user", content_text(&message));
  std::string content = content_text(any_of(&message, {"content", "parts", "output", "arguments"}));
  if (const json* const calls = any_of(&message, {"tool_calls", "function_call"})) content += dumped(*calls);
  return text_with_role(text_of(any_of(&message, {"role"})), content);
}

void add_raw_prompt(const std::string& text, std::vector<LoggedText>* out) {
  constexpr size_t kRawPieceChars = 256;  // about 64 tokens: four pages of 16
  for (size_t at = 0; at < text.size(); at += kRawPieceChars)
    out->push_back(text_with_role("", text.substr(at, kRawPieceChars)));
}

}  // namespace

const json* any_of(const json* object, std::initializer_list<const char*> names) {
  if (object == nullptr || !object->is_object()) return nullptr;
  for (const char* const name : names) {
    const auto it = object->find(name);
    if (it != object->end() && !it->is_null()) return &*it;
  }
  return nullptr;
}

const json* nested(const json* object, std::initializer_list<const char*> names) {
  for (const char* const name : names) object = any_of(object, {name});
  return object;
}

std::optional<uint64_t> count_of(const json* value) {
  if (value == nullptr) return std::nullopt;
  if (value->is_number_unsigned()) return value->get<uint64_t>();
  if (value->is_number_float()) {
    const double number = value->get<double>();
    if (number >= 0 && number < 9e15 && number == std::floor(number)) return static_cast<uint64_t>(number);
    return std::nullopt;
  }
  if (!value->is_string()) return std::nullopt;
  const std::string& text = value->get_ref<const std::string&>();
  uint64_t number = 0;
  const auto [end, bad] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (bad != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

std::optional<double> number_of(const json* value) {
  if (value == nullptr || !value->is_number()) return std::nullopt;
  const double number = value->get<double>();
  return std::isfinite(number) ? std::optional<double>(number) : std::nullopt;
}

std::string text_of(const json* value) {
  if (value == nullptr) return {};
  if (value->is_string()) return value->get<std::string>();
  return value->is_number_integer() ? value->dump() : std::string();
}

std::optional<int64_t> unix_ns(const json* value) {
  if (value == nullptr) return std::nullopt;
  if (value->is_number_unsigned() && value->get<uint64_t>() >= 100'000'000'000'000'000) {
    const uint64_t ns = value->get<uint64_t>();  // exact, unlike a double
    return ns > INT64_MAX ? std::nullopt : std::optional<int64_t>(static_cast<int64_t>(ns));
  }
  if (value->is_number()) return unix_of_number(value->get<double>());
  if (!value->is_string()) return std::nullopt;
  if (const std::optional<uint64_t> digits = count_of(value)) {
    const json number = *digits;
    return unix_ns(&number);
  }
  const std::string& text = value->get_ref<const std::string&>();
  double number = 0;
  const auto [end, bad] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (bad == std::errc() && end == text.data() + text.size()) return unix_of_number(number);
  return text.size() > 64 ? std::nullopt : parse_time(text);
}

std::optional<int64_t> unix_ns_or(const json* value, std::string* unread) {
  const std::optional<int64_t> at = unix_ns(value);
  if (!at && value != nullptr && !value->is_null())
    *unread = value->dump(-1, ' ', true, json::error_handler_t::replace).substr(0, 60);
  return at;
}

std::optional<int64_t> seconds_ns(const json* value) {
  const std::optional<double> seconds = number_of(value);
  if (!seconds || !(std::abs(*seconds) < 9e9)) return std::nullopt;
  return std::llround(*seconds * 1e9);
}

Result<void> for_each_object(const std::string& path, const CompactKeys& keys, const TakeObject& take) {
  const Result<bool> document = is_document(path);
  if (!document) return tl::unexpected<Error>(document.error());
  if (*document) return take_document(path, keys, take);
  return for_each_line(path, [&](uint64_t line, std::string_view text) -> Result<void> {
    const std::string where = fmt::format("{}:{}", path, line);
    const Result<CompactJson> object = parse_compact_json(text, keys);
    if (!object) return bad_json(where, object.error());
    return take(object->tree, where);
  });
}

std::vector<LoggedText> texts_of(const json* messages) {
  std::vector<LoggedText> out;
  if (messages == nullptr) return out;
  if (messages->is_string()) {
    const std::string& text = messages->get_ref<const std::string&>();
    const bool list = text.starts_with('[') || text.starts_with('{');
    // OpenTelemetry's attributes hold JSON as text.
    const Result<CompactJson> parsed = list ? parse_compact_json(text, {}) : CompactJson{};
    if (list && parsed) return texts_of(&parsed->tree);
    add_raw_prompt(text, &out);
  } else if (messages->is_array()) {
    for (const json& message : *messages) out.push_back(text_of_message(message));
  } else if (messages->is_object()) {
    if (const json* const inner = any_of(messages, {"messages"})) return texts_of(inner);
    out.push_back(text_of_message(*messages));
  }
  return out;
}

std::vector<LoggedText> prompt_of_body(const json* body) {
  std::vector<LoggedText> out;
  if (const json* const tools = any_of(body, {"tools", "functions"}))
    out.push_back(text_with_role("system", dumped(*tools)));
  if (const json* const system = any_of(body, {"system", "instructions"}))
    out.push_back(text_with_role("system", content_text(system)));
  const std::vector<LoggedText> rest = texts_of(any_of(body, {"messages", "input", "prompt"}));
  if (rest.empty()) return {};
  out.insert(out.end(), rest.begin(), rest.end());
  return out;
}

std::optional<LoggedText> answer_of(const json* response) {
  if (response == nullptr) return std::nullopt;
  if (response->is_string()) {
    const std::string& text = response->get_ref<const std::string&>();
    if (text.starts_with('[') || text.starts_with('{')) {
      const Result<CompactJson> parsed = parse_compact_json(text, {});
      if (parsed) return answer_of(&parsed->tree);
    }
    return text_with_role("assistant", text);
  }
  if (response->is_array()) return response->empty() ? std::nullopt : answer_of(&response->back());
  if (const json* const choices = any_of(response, {"choices"})) {
    if (!choices->is_array() || choices->empty()) return std::nullopt;
    const json& first = choices->front();
    if (const json* const message = any_of(&first, {"message"})) return text_of_message(*message);
    const json* const text = any_of(&first, {"text"});
    return text == nullptr ? std::nullopt
                           : std::optional<LoggedText>(text_with_role("assistant", content_text(text)));
  }
  if (any_of(response, {"role"}) != nullptr) return text_of_message(*response);
  const json* const content = any_of(response, {"output", "content", "text"});
  if (content == nullptr) return std::nullopt;
  return text_with_role("assistant", content_text(content));
}

}  // namespace kvtwin
