// Fields reads one JSON object and records the first error, so that callers can read on without checks.

#ifndef KVTWIN_MODELS_CATALOG_JSON_FIELDS_H_
#define KVTWIN_MODELS_CATALOG_JSON_FIELDS_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "engine/base/result.h"

namespace kvtwin {

// Each getter returns `absent` for a field that is missing, null or of another type; the last is an error.
class Fields {
 public:
  // `object` must outlive this. `where` opens the error.
  Fields(const nlohmann::json& object, std::string where) : object_(object), where_(std::move(where)) {}

  // Null if the field is missing or null.
  const nlohmann::json* find(const char* key) const;
  // Without `absent`, a missing field is an error.
  uint32_t count(const char* key, std::optional<uint32_t> absent = {});
  double real(const char* key, double absent);
  bool flag(const char* key, bool absent);
  std::string text(const char* key);

  void fail(std::string what, std::string hint);
  const std::optional<Error>& first_error() const { return error_; }
  const std::string& where() const { return where_; }

 private:
  const nlohmann::json& object_;
  std::string where_;
  std::optional<Error> error_;
};

}  // namespace kvtwin

#endif  // KVTWIN_MODELS_CATALOG_JSON_FIELDS_H_
