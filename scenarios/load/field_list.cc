#include "scenarios/load/field_list.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/text_format.h>

#include <cstring>
#include <map>
#include <sstream>
#include <utility>

#include "scenarios/load/scenario.h"
#include "scenarios/load/units.h"

namespace kvtwin {

extern const char kFieldsPage[];

namespace {

namespace pb = google::protobuf;
using Field = pb::FieldDescriptor;

// The last column of each field's row in the page.
std::map<std::string, std::string> comments() {
  std::map<std::string, std::string> out;
  std::istringstream page(kFieldsPage);
  for (std::string line; std::getline(page, line);) {
    const size_t name_end = line.find("` |");
    if (!line.starts_with("| `") || name_end == std::string::npos) continue;
    const size_t begin = line.rfind(" | ", line.size() - 3);
    std::string text = line.substr(begin + 3, line.size() - begin - 5);
    for (const auto& [from, to] : {std::pair("&lt;", "<"), std::pair("\\|", "|")}) {
      for (size_t at = text.find(from); at != std::string::npos; at = text.find(from))
        text.replace(at, std::strlen(from), to);
    }
    out[line.substr(3, name_end - 3)] = text.starts_with("see [") ? "" : text;
  }
  return out;
}

std::string kind_name(const Field* field) {
  const std::string list = field->is_repeated() ? "list of " : "";
  switch (field->cpp_type()) {
    case Field::CPPTYPE_STRING:
      return list + "text";
    case Field::CPPTYPE_BOOL:
      return list + "bool";
    default:
      break;
  }
  const bool whole = field->cpp_type() != Field::CPPTYPE_DOUBLE;
  switch (base_unit(field->name(), whole)) {
    case BaseUnit::kBytes:
      return list + "bytes";
    case BaseUnit::kNanoseconds:
      return list + "ns";
    case BaseUnit::kSeconds:
      return list + "seconds";
    case BaseUnit::kPerSecond:
      return list + "per second";
    default:
      return list + (whole ? "count" : "number");
  }
}

void add_fields(const pb::Descriptor* type, const pb::Message* defaults, const std::string& prefix,
                std::vector<FieldLine>* out) {
  for (int i = 0; i < type->field_count(); ++i) {
    const Field* const field = type->field(i);
    const std::string path = prefix + field->name();
    const bool list = field->is_repeated();
    if (field->cpp_type() == Field::CPPTYPE_MESSAGE) {
      const pb::Message* const below =
          defaults != nullptr && !list ? &defaults->GetReflection()->GetMessage(*defaults, field) : nullptr;
      add_fields(field->message_type(), below, path + (list ? "[]." : "."), out);
      continue;
    }
    std::string value;
    if (defaults != nullptr && !list && defaults->GetReflection()->HasField(*defaults, field))
      pb::TextFormat::PrintFieldValueToString(*defaults, field, -1, &value);
    out->push_back({path, kind_name(field), value, ""});
  }
}

}  // namespace

std::vector<FieldLine> scenario_fields() {
  const v1::Scenario defaults = default_scenario("");
  std::vector<FieldLine> out;
  add_fields(v1::Scenario::descriptor(), &defaults, "", &out);
  const std::map<std::string, std::string> comment = comments();
  for (FieldLine& line : out) {
    const auto found = comment.find(line.path);
    if (found != comment.end()) line.comment = found->second;
  }
  return out;
}

}  // namespace kvtwin
