#include "models/catalog/json_fields.h"

#include <fmt/format.h>

#include <cmath>

namespace kvtwin {
namespace {

using Json = nlohmann::json;

std::string clip(const Json& value) {
  if (value.is_structured()) return value.is_array() ? "an array" : "an object";  // dump() recurses
  const std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  return text.size() <= 60 ? text : text.substr(0, 57) + "...";
}

}  // namespace

const Json* Fields::find(const char* key) const {
  const auto it = object_.find(key);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

uint32_t Fields::count(const char* key, std::optional<uint32_t> absent) {
  const Json* value = find(key);
  if (value == nullptr) {
    if (!absent) fail(fmt::format("no \"{}\"", key), "this model family needs it");
    return absent.value_or(0);
  }
  if (!value->is_number_unsigned() || value->get<uint64_t>() > UINT32_MAX) {
    fail(fmt::format("\"{}\" is {}", key, clip(*value)), "a whole number below 2^32 is right");
    return 0;
  }
  return value->get<uint32_t>();
}

double Fields::real(const char* key, double absent) {
  const Json* value = find(key);
  if (value == nullptr) return absent;
  if (value->is_number() && std::isfinite(value->get<double>())) return value->get<double>();
  fail(fmt::format("\"{}\" is {}", key, clip(*value)), "a number is right");
  return absent;
}

bool Fields::flag(const char* key, bool absent) {
  const Json* value = find(key);
  if (value == nullptr) return absent;
  if (value->is_boolean()) return value->get<bool>();
  fail(fmt::format("\"{}\" is {}", key, clip(*value)), "true or false is right");
  return absent;
}

std::string Fields::text(const char* key) {
  const Json* value = find(key);
  if (value == nullptr) return {};
  if (value->is_string()) return value->get<std::string>();
  fail(fmt::format("\"{}\" is {}", key, clip(*value)), "a string is right");
  return {};
}

void Fields::fail(std::string what, std::string hint) {
  if (!error_) error_ = Error{where_, std::move(what), std::move(hint)};
}

}  // namespace kvtwin
