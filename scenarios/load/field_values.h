// Values of scenario fields as text.

#ifndef KVTWIN_SCENARIOS_LOAD_FIELD_VALUES_H_
#define KVTWIN_SCENARIOS_LOAD_FIELD_VALUES_H_

#include <string>
#include <string_view>

#include "engine/base/result.h"

namespace google::protobuf {
class FieldDescriptor;
class Message;
}  // namespace google::protobuf

namespace kvtwin {

// Whether the field is a number.
bool takes_unit(const google::protobuf::FieldDescriptor* field);
// A number of the field in its base unit (units.h). The Error has no place.
Result<std::string> plain_value(const google::protobuf::FieldDescriptor* field, std::string_view text);
// Sets one scalar of `message`, or adds to a repeated field. `name` is the field's in the Error, which has no
// place.
Result<void> set_scalar(google::protobuf::Message* message, const google::protobuf::FieldDescriptor* field,
                        const std::string& name, const std::string& text);
// What the field takes: "a whole number of at least 0, with one of the units B, kB, ...".
std::string kind_of(const google::protobuf::FieldDescriptor* field);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_LOAD_FIELD_VALUES_H_
