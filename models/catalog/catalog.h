// Catalog finds every LLM, device and node that a scenario can name.
//
// A name is the stem of a file: `llama-3.1-8b` is llm/llama-3.1-8b.textproto in the catalog's folder. A name
// with a slash or the ending .textproto is a path, so that a scenario can bring its own. Files are read when
// asked for. A device that a node names by a path is relative to the node's file.

#ifndef KVTWIN_MODELS_CATALOG_CATALOG_H_
#define KVTWIN_MODELS_CATALOG_CATALOG_H_

#include <string>
#include <string_view>
#include <vector>

#include "engine/base/result.h"
#include "models/catalog/device.h"
#include "models/catalog/llm.h"

namespace kvtwin {

// data_folder("models"): $KVTWIN_MODELS, or the folder that this build came with.
std::string default_models_dir();

// Whether `name` is the path of a file and not a name of the catalog.
bool is_catalog_path(std::string_view name);

class Catalog {
 public:
  explicit Catalog(std::string dir = default_models_dir()) : dir_(std::move(dir)) {}

  Result<LlmSpec> llm(const std::string& name) const;
  Result<DeviceSpec> device(const std::string& name) const;
  Result<NodeSpec> node(const std::string& name) const;

  // Names in the catalog, sorted; `kind` is llm, device or node.
  std::vector<std::string> names(const char* kind) const;

 private:
  Result<std::string> path_of(const char* kind, const std::string& name) const;

  std::string dir_;
};

// The same from text; `where` opens every message.
Result<LlmSpec> parse_llm(std::string_view text, const std::string& where);
Result<DeviceSpec> parse_device(std::string_view text, const std::string& where);
Result<NodeSpec> parse_node(std::string_view text, const std::string& where);

// Text that parse_llm() reads back as `llm`.
std::string llm_textproto(const LlmSpec& llm);

}  // namespace kvtwin

#endif  // KVTWIN_MODELS_CATALOG_CATALOG_H_
