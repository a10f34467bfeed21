#include "traces/format/json_fields.h"

#include <fmt/format.h>

#include <cmath>

namespace kvtwin {

using nlohmann::json;

std::string shown(const json& value) {
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

JsonFields::JsonFields(const json& object, std::string where) : object_(object), where_(std::move(where)) {
  if (!object_.is_object()) problem(fmt::format("{} is no object", shown(object_)));
}

const json* JsonFields::find(const char* name) const {
  if (!object_.is_object()) return nullptr;
  const auto it = object_.find(name);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

void JsonFields::problem(const std::string& what, const std::string& hint) {
  if (!error_) error_ = Error{where_, what, hint};
}

void JsonFields::missing(const char* name, const char* what) {
  problem(fmt::format("has no \"{}\"", name), fmt::format("{} is required", what));
}

std::optional<uint64_t> JsonFields::u64_if(const char* name) {
  const json* const value = find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_number_unsigned()) return value->get<uint64_t>();
  if (value->is_number_float()) {  // some tools write counts as 12.0
    const double number = value->get<double>();
    if (number >= 0 && number < 9e15 && number == std::floor(number)) return static_cast<uint64_t>(number);
  }
  problem(fmt::format("\"{}\" is {}", name, shown(*value)), "a whole number, not negative");
  return std::nullopt;
}

std::optional<uint32_t> JsonFields::u32_if(const char* name) {
  const std::optional<uint64_t> value = u64_if(name);
  if (!value) return std::nullopt;
  if (*value > UINT32_MAX) {
    problem(fmt::format("\"{}\" is {}", name, *value), "below 2^32");
    return std::nullopt;
  }
  return static_cast<uint32_t>(*value);
}

uint32_t JsonFields::u32(const char* name) {
  if (!has(name)) missing(name, "a whole number");
  return u32_if(name).value_or(0);
}

std::optional<double> JsonFields::number_if(const char* name) {
  const json* const value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number() || !std::isfinite(value->get<double>())) {
    problem(fmt::format("\"{}\" is {}", name, shown(*value)), "a number");
    return std::nullopt;
  }
  return value->get<double>();
}

std::optional<int64_t> JsonFields::time_ns_if(const char* name, double unit_ns) {
  const std::optional<double> value = number_if(name);
  if (!value) return std::nullopt;
  const double ns = *value * unit_ns;
  if (!(ns >= 0) || ns > 1e18) {  // 31 years
    problem(fmt::format("\"{}\" is {}", name, *value), "a time, not negative, within 31 years");
    return std::nullopt;
  }
  return std::llround(ns);
}

int64_t JsonFields::time_ns(const char* name, double unit_ns) {
  if (!has(name)) missing(name, "a time");
  return time_ns_if(name, unit_ns).value_or(0);
}

std::optional<std::string> JsonFields::text_if(const char* name) {
  const json* const value = find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_string()) return value->get<std::string>();
  if (value->is_number_integer()) return value->dump();  // ids are numbers in some files
  problem(fmt::format("\"{}\" is {}", name, shown(*value)), "a text");
  return std::nullopt;
}

std::string JsonFields::text(const char* name) {
  if (!has(name)) missing(name, "a text");
  return text_if(name).value_or("");
}

const json& JsonFields::list(const char* name) {
  static const json kEmpty = json::array();
  const json* const value = find(name);
  if (value == nullptr) return kEmpty;
  if (!value->is_array()) {
    problem(fmt::format("\"{}\" is {}", name, shown(*value)), "a list");
    return kEmpty;
  }
  return *value;
}

std::vector<std::string> JsonFields::texts(const char* name) {
  std::vector<std::string> out;
  for (const json& value : list(name)) {
    if (!value.is_string())
      problem(fmt::format("\"{}\" holds {}", name, shown(value)), "texts");
    else
      out.push_back(value.get<std::string>());
  }
  return out;
}

}  // namespace kvtwin
