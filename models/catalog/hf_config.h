// Imports a Hugging Face config.json as an LlmSpec.
//
// hf_family.h has the supported families; of vision models the text part is imported. Any other model_type is
// an error, because its geometry cannot be guessed, and so is a mechanism that LlmSpec cannot express.

#ifndef KVTWIN_MODELS_CATALOG_HF_CONFIG_H_
#define KVTWIN_MODELS_CATALOG_HF_CONFIG_H_

#include <string>
#include <string_view>

#include "engine/base/result.h"
#include "models/catalog/llm.h"

namespace kvtwin {

// `where` opens every message. Name and source of the result are empty. With `as`, the config is read by the
// rules of that family, whatever its model_type is, and LlmSpec::not_computed says so.
Result<LlmSpec> import_hf_config(std::string_view json, const std::string& where = "config.json",
                                 const std::string& as = {});

}  // namespace kvtwin

#endif  // KVTWIN_MODELS_CATALOG_HF_CONFIG_H_
