#include "scenarios/load/short_textproto.h"

#include <google/protobuf/text_format.h>

#include <vector>

#include "models/files/textproto.h"

namespace kvtwin {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using google::protobuf::TextFormat;

std::string text_of(const Message& message, const FieldDescriptor* field) {
  const Reflection& reflection = *message.GetReflection();
  std::string out, one;
  if (!field->is_repeated()) {
    if (reflection.HasField(message, field)) TextFormat::PrintFieldValueToString(message, field, -1, &out);
    return out;
  }
  for (int i = 0; i < reflection.FieldSize(message, field); ++i) {
    TextFormat::PrintFieldValueToString(message, field, i, &one);
    out += one + "\n";
  }
  return out;
}

void clear_equal(Message* message, const Message& defaults) {
  const Reflection& reflection = *message->GetReflection();
  std::vector<const FieldDescriptor*> set;
  reflection.ListFields(*message, &set);
  for (const FieldDescriptor* field : set) {
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE && !field->is_repeated()) {
      Message* const inner = reflection.MutableMessage(message, field);
      clear_equal(inner, reflection.GetMessage(defaults, field));
      std::vector<const FieldDescriptor*> left;
      inner->GetReflection()->ListFields(*inner, &left);
      if (left.empty()) reflection.ClearField(message, field);
    } else if (text_of(*message, field) == text_of(defaults, field)) {
      reflection.ClearField(message, field);
    }
  }
}

}  // namespace

std::string short_textproto(const Scenario& scenario) {
  const v1::Scenario& values = scenario.values;
  v1::Scenario shortened = values;
  if (!scenario.places.contains("policies.placement")) shortened.mutable_policies()->clear_placement();
  if (!scenario.places.contains("clock")) shortened.clear_clock();
  clear_equal(&shortened, default_scenario(values.limits().preset()));
  if (!values.limits().preset().empty()) shortened.mutable_limits()->set_preset(values.limits().preset());
  return textproto_text(shortened);
}

}  // namespace kvtwin
