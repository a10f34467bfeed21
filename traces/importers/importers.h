// Helpers of the importers, and the importers themselves. Only formats.cc and tests need this.

#ifndef KVTWIN_TRACES_IMPORTERS_IMPORTERS_H_
#define KVTWIN_TRACES_IMPORTERS_IMPORTERS_H_

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "traces/importers/formats.h"

namespace kvtwin {

// A header with what every imported trace has: version, source, base name of the file, importer.
v1::TraceHeader imported_header(const std::string& format, const std::string& path);
// Adds a default provenance. `recipe`: 1 + index in header.recipes, 0: none.
void add_policy(v1::TraceHeader* header, const char* field, v1::Prov prov, uint32_t recipe = 0);
// Adds a recipe and returns its number for add_policy() and ProvOverride.
uint32_t add_recipe(v1::TraceHeader* header, const std::string& name, const std::string& params_json,
                    uint64_t seed, const std::string& fitted_on);
v1::ProvOverride* mark(v1::Node* node, uint32_t field, v1::Prov prov, uint32_t recipe = 0);
// The provenance of a field of a node's request, tool or sub-agent: its override, else PROV_UNSPECIFIED.
v1::Prov marked(const v1::Node& node, uint32_t field);
v1::Extra* add_extra(google::protobuf::RepeatedPtrField<v1::Extra>* extras, std::string key,
                     std::string value_json);
const std::string* find_extra(const google::protobuf::RepeatedPtrField<v1::Extra>& extras,
                              std::string_view key);
void note(const ImportOptions& options, std::string text);

// The service time of recorded Claude Code requests, by fit (docs/design/trace-formats.md#weka; R2 = 0.875):
// 1.26 s, plus a second per 67.4 output tokens, plus 1.56 s per 100,000 prompt tokens. Used where none was
// recorded.
int64_t estimated_service_ns(uint32_t prompt_tokens, uint32_t output_tokens);

// Holds serialised sessions until the header that must precede them is known.
class HeldSessions {
 public:
  // emit() sorts by `order`; sessions of equal order stay in the order of hold().
  Result<void> hold(std::string order, const v1::Session& session);
  // `models`: the new value of each model index, where names were interned in order of appearance.
  Result<void> emit(const std::vector<uint32_t>& models, TraceSink* sink);
  size_t size() const { return held_.size(); }

 private:
  std::vector<std::pair<std::string, std::string>> held_;  // order, bytes
  uint64_t bytes_ = 0;
};

Result<void> import_weka(const std::string& path, const ImportOptions& options, TraceSink* sink);
Result<void> import_mooncake(const std::string& path, const ImportOptions& options, TraceSink* sink);
Result<void> import_mooncake_delta(const std::string& path, const ImportOptions& options, TraceSink* sink);
Result<void> import_agentic_mooncake(const std::string& path, const ImportOptions& options, TraceSink* sink);
Result<void> import_azure(const std::string& path, const ImportOptions& options, TraceSink* sink);
Result<void> import_llmservingsim(const std::string& path, const ImportOptions& options, TraceSink* sink);

std::unique_ptr<TraceSink> export_weka(const std::string& path);  // a directory with one file per session
std::unique_ptr<TraceSink> export_mooncake(const std::string& path);
std::unique_ptr<TraceSink> export_azure(const std::string& path);

}  // namespace kvtwin

#endif  // KVTWIN_TRACES_IMPORTERS_IMPORTERS_H_
