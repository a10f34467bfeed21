// JsonFields reads the fields of one JSON object and records the first error.
//
// A getter of an invalid field returns a harmless value, so that an importer reads on and checks once, at the
// end: `if (fields.failed()) return fields.error();`.

#ifndef KVTWIN_TRACES_FORMAT_JSON_FIELDS_H_
#define KVTWIN_TRACES_FORMAT_JSON_FIELDS_H_

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "engine/base/result.h"

namespace kvtwin {

class JsonFields {
 public:
  // `object` must outlive this. `where` opens every error: "trace_0003.json: requests[4]".
  JsonFields(const nlohmann::json& object, std::string where);

  bool has(const char* name) const { return find(name) != nullptr; }  // present and not null
  uint32_t u32(const char* name);
  std::optional<uint32_t> u32_if(const char* name);
  std::optional<uint64_t> u64_if(const char* name);
  std::optional<double> number_if(const char* name);
  // A time in units of `unit_ns`, converted to nanoseconds. Negative times are errors.
  int64_t time_ns(const char* name, double unit_ns);
  std::optional<int64_t> time_ns_if(const char* name, double unit_ns);
  std::string text(const char* name);
  std::optional<std::string> text_if(const char* name);
  // A missing list reads as empty.
  const nlohmann::json& list(const char* name);
  std::vector<std::string> texts(const char* name);

  void problem(const std::string& what, const std::string& hint = {});
  bool failed() const { return error_.has_value(); }
  tl::unexpected<Error> error() const { return tl::unexpected<Error>(*error_); }
  const std::string& where() const { return where_; }

 private:
  const nlohmann::json* find(const char* name) const;
  void missing(const char* name, const char* what);

  const nlohmann::json& object_;
  const std::string where_;
  std::optional<Error> error_;
};

// The first 60 characters of a value, for messages.
std::string shown(const nlohmann::json& value);

}  // namespace kvtwin

#endif  // KVTWIN_TRACES_FORMAT_JSON_FIELDS_H_
