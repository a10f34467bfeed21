#include "traces/importers/importers.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "traces/format/check.h"

namespace kvtwin {
namespace {

constexpr uint64_t kHeldBytesMax = uint64_t{256} << 20;

}  // namespace

v1::TraceHeader imported_header(const std::string& format, const std::string& path) {
  v1::TraceHeader header;
  header.set_schema_version(kTraceSchemaVersion);
  v1::Source& source = *header.mutable_source();
  source.set_name(format);
  source.set_importer("kvtwin " + format);
  std::filesystem::path file(path);
  if (!file.has_filename()) file = file.parent_path();  // "dir/"
  source.set_file(file.filename().string());
  return header;
}

void add_policy(v1::TraceHeader* header, const char* field, v1::Prov prov, uint32_t recipe) {
  v1::FieldPolicy& policy = *header->add_policies();
  policy.set_field(field);
  policy.set_prov(prov);
  policy.set_recipe(recipe);
}

uint32_t add_recipe(v1::TraceHeader* header, const std::string& name, const std::string& params_json,
                    uint64_t seed, const std::string& fitted_on) {
  v1::SynthRecipe& recipe = *header->add_recipes();
  recipe.set_name(name);
  recipe.set_params_json(params_json);
  recipe.set_seed(seed);
  recipe.set_fitted_on(fitted_on);
  return static_cast<uint32_t>(header->recipes_size());
}

v1::ProvOverride* mark(v1::Node* node, uint32_t field, v1::Prov prov, uint32_t recipe) {
  v1::ProvOverride* const entry = node->add_prov();
  entry->set_field(field);
  entry->set_prov(prov);
  entry->set_recipe(recipe);
  return entry;
}

v1::Prov marked(const v1::Node& node, uint32_t field) {
  for (const v1::ProvOverride& entry : node.prov()) {
    if (entry.field() == field) return entry.prov();
  }
  return v1::PROV_UNSPECIFIED;
}

v1::Extra* add_extra(google::protobuf::RepeatedPtrField<v1::Extra>* extras, std::string key,
                     std::string value_json) {
  v1::Extra* const extra = extras->Add();
  extra->set_key(std::move(key));
  extra->set_value_json(std::move(value_json));
  return extra;
}

const std::string* find_extra(const google::protobuf::RepeatedPtrField<v1::Extra>& extras,
                              std::string_view key) {
  for (const v1::Extra& extra : extras) {
    if (extra.key() == key) return &extra.value_json();
  }
  return nullptr;
}

void note(const ImportOptions& options, std::string text) {
  if (options.notes != nullptr) options.notes->push_back(std::move(text));
}

int64_t estimated_service_ns(uint32_t prompt_tokens, uint32_t output_tokens) {
  // In integers: 1e9/67.4 = 14,836,795 ns per output token, 1.56e9/1e5 = 15,600 ns per prompt token.
  return 1'260'000'000 + int64_t{output_tokens} * 14'836'795 + int64_t{prompt_tokens} * 15'600;
}

Result<void> HeldSessions::hold(std::string order, const v1::Session& session) {
  held_.emplace_back(std::move(order), session.SerializeAsString());
  bytes_ += held_.back().first.size() + held_.back().second.size() + sizeof held_.back();
  if (bytes_ <= kHeldBytesMax) return {};
  return make_error("", fmt::format("more than {} MiB of sessions", kHeldBytesMax >> 20),
                    "import it in parts");
}

Result<void> HeldSessions::emit(const std::vector<uint32_t>& models, TraceSink* sink) {
  std::stable_sort(held_.begin(), held_.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  v1::Session session;
  for (auto& [order, bytes] : held_) {
    if (!session.ParseFromString(bytes)) return make_error(order, "a held session could not be read back");
    std::string().swap(bytes);
    for (v1::Agent& agent : *session.mutable_agents()) agent.set_model(models.at(agent.model()));
    for (v1::Node& node : *session.mutable_nodes()) {
      if (node.has_llm()) node.mutable_llm()->set_model(models.at(node.llm().model()));
    }
    if (auto good = sink->session(session); !good) return good;
  }
  held_.clear();
  return {};
}

}  // namespace kvtwin
