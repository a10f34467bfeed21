// Hugging Face config.json -> LlmSpec.
//
// Understood: llama, qwen2, qwen3, qwen3_moe, mistral, gpt_oss, and the text part of qwen3_vl. Any
// other model_type is refused: a guess about its geometry would be worse than none.

#ifndef KVTWIN_MODELS_CATALOG_HF_CONFIG_H_
#define KVTWIN_MODELS_CATALOG_HF_CONFIG_H_

#include <string>
#include <string_view>

#include "engine/base/result.h"
#include "models/catalog/llm.h"

namespace kvtwin {

// `where` opens every message. The name and source of the result are left empty.
Result<LlmSpec> import_hf_config(std::string_view json, const std::string& where = "config.json");

}  // namespace kvtwin

#endif  // KVTWIN_MODELS_CATALOG_HF_CONFIG_H_
