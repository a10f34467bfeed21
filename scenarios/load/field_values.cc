#include "scenarios/load/field_values.h"

#include <fmt/format.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <algorithm>
#include <charconv>
#include <cstdint>

#include "scenarios/load/units.h"

namespace kvtwin {
namespace {

namespace pb = google::protobuf;
using Field = pb::FieldDescriptor;

bool is_whole(const Field* field) { return takes_unit(field) && field->cpp_type() != Field::CPPTYPE_DOUBLE; }

// Parses the whole of `text` as a number of the field's type; commas may group digits.
template <typename T>
bool number(std::string text, T* value) {
  text.erase(std::remove(text.begin(), text.end(), ','), text.end());
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, *value);
  return error == std::errc() && stop == end;
}

bool set_plain(pb::Message* message, const Field* field, const std::string& text) {
  const pb::Reflection* reflection = message->GetReflection();
  const bool many = field->is_repeated();
  switch (field->cpp_type()) {
    case Field::CPPTYPE_STRING:
      many ? reflection->AddString(message, field, text) : reflection->SetString(message, field, text);
      return true;
    case Field::CPPTYPE_BOOL:
      if (text != "true" && text != "false") return false;
      reflection->SetBool(message, field, text == "true");
      return true;
    case Field::CPPTYPE_UINT32: {
      uint32_t value = 0;
      if (!number(text, &value)) return false;
      many ? reflection->AddUInt32(message, field, value) : reflection->SetUInt32(message, field, value);
      return true;
    }
    case Field::CPPTYPE_UINT64: {
      uint64_t value = 0;
      if (!number(text, &value)) return false;
      reflection->SetUInt64(message, field, value);
      return true;
    }
    case Field::CPPTYPE_INT64: {
      int64_t value = 0;
      if (!number(text, &value)) return false;
      reflection->SetInt64(message, field, value);
      return true;
    }
    case Field::CPPTYPE_DOUBLE: {
      double value = 0;
      if (!number(text, &value)) return false;
      many ? reflection->AddDouble(message, field, value) : reflection->SetDouble(message, field, value);
      return true;
    }
    default:
      return false;
  }
}

}  // namespace

bool takes_unit(const Field* field) {
  switch (field->cpp_type()) {
    case Field::CPPTYPE_UINT32:
    case Field::CPPTYPE_UINT64:
    case Field::CPPTYPE_INT64:
    case Field::CPPTYPE_DOUBLE:
      return true;
    default:
      return false;
  }
}

Result<std::string> plain_value(const Field* field, std::string_view text) {
  return without_unit(text, base_unit(field->name(), is_whole(field)), is_whole(field));
}

Result<void> set_scalar(pb::Message* message, const Field* field, const std::string& name,
                        const std::string& text) {
  std::string plain = text;
  if (takes_unit(field)) {
    const Result<std::string> converted = plain_value(field, text);
    if (!converted)
      return make_error("",
                        fmt::format("\"{}\" is not a value of {}: it {}", text, name, converted.error().what),
                        fmt::format("it takes {}", kind_of(field)));
    plain = *converted;
  }
  if (set_plain(message, field, plain)) return {};
  return make_error("", fmt::format("\"{}\" is not a value of {}", text, name),
                    fmt::format("it takes {}", kind_of(field)));
}

std::string kind_of(const Field* field) {
  const auto with_units = [&](const char* kind) {
    return fmt::format("{}; units: {}", kind, units_of(base_unit(field->name(), is_whole(field))));
  };
  switch (field->cpp_type()) {
    case Field::CPPTYPE_BOOL:
      return "true or false";
    case Field::CPPTYPE_UINT32:
      return with_units("a whole number from 0 to 4294967295");
    case Field::CPPTYPE_UINT64:
      return with_units("a whole number of at least 0");
    case Field::CPPTYPE_INT64:
      return with_units("a whole number");
    case Field::CPPTYPE_DOUBLE:
      return with_units("a number");
    case Field::CPPTYPE_MESSAGE:
      return "one of its fields, as in --set=group.field=value";
    default:
      return "text";
  }
}

}  // namespace kvtwin
