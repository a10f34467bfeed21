// Catalog finds every LLM, device and node that a scenario can name.
//
// A name is the stem of a file: `llama-3.1-8b` is llm/llama-3.1-8b.textproto in the catalog's folder. A name
// with a slash or the ending .textproto is a path, so that a scenario can bring its own. Names are looked up
// without case. Files are read when asked for. A path that a file states (`base`, `device`) is relative to
// it.

#ifndef KVTWIN_MODELS_CATALOG_CATALOG_H_
#define KVTWIN_MODELS_CATALOG_CATALOG_H_

#include <string>
#include <string_view>
#include <vector>

#include "engine/base/result.h"
#include "models/catalog/device.h"
#include "models/catalog/llm.h"

namespace google::protobuf {
class Message;
}

namespace kvtwin {

// data_folder("models"): $KVTWIN_MODELS, or the folder that this build came with.
std::string default_models_dir();

// Whether `name` is the path of a file and not a name of the catalog.
bool is_catalog_path(std::string_view name);

// Refuses a name that the catalog could not find again: letters, digits, '.', '_' and '-' are right.
Result<void> check_catalog_name(const std::string& name, const std::string& where);

class Catalog {
 public:
  explicit Catalog(std::string dir = default_models_dir()) : dir_(std::move(dir)) {}

  Result<LlmSpec> llm(const std::string& name) const;
  Result<DeviceSpec> device(const std::string& name) const;
  Result<NodeSpec> node(const std::string& name) const;

  // Names in the catalog, sorted; `kind` is llm, device or node.
  std::vector<std::string> names(const char* kind) const;

  // The file of a name, or the path itself. An unknown name is answered with the nearest ones.
  Result<std::string> path_of(const char* kind, const std::string& name) const;
  // That file and those of its bases; none if there is no such name.
  std::vector<std::string> files_of(const char* kind, const std::string& name) const;
  // Reads a DeviceSpec or NodeSpec together with its bases (base_file.h).
  Result<void> parse(const char* kind, std::string_view text, const std::string& where,
                     google::protobuf::Message* message) const;

 private:
  std::string dir_;
};

// The same from text; `where` opens every message.
Result<LlmSpec> parse_llm(std::string_view text, const std::string& where);
Result<DeviceSpec> parse_device(std::string_view text, const std::string& where,
                                const Catalog& catalog = Catalog());
Result<NodeSpec> parse_node(std::string_view text, const std::string& where,
                            const Catalog& catalog = Catalog());

// Text that parse_llm() reads back as `llm`.
std::string llm_textproto(const LlmSpec& llm);

}  // namespace kvtwin

#endif  // KVTWIN_MODELS_CATALOG_CATALOG_H_
