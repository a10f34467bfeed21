// Imports a Hugging Face config.json as an LlmSpec.
//
// Supported: llama, qwen2, qwen3, qwen3_moe, mistral, gpt_oss, and the text part of qwen3_vl. Any other
// model_type is an error, because its geometry cannot be guessed.

#ifndef KVTWIN_MODELS_CATALOG_HF_CONFIG_H_
#define KVTWIN_MODELS_CATALOG_HF_CONFIG_H_

#include <string>
#include <string_view>

#include "engine/base/result.h"
#include "models/catalog/llm.h"

namespace kvtwin {

// `where` opens every message. Name and source of the result are empty.
Result<LlmSpec> import_hf_config(std::string_view json, const std::string& where = "config.json");

}  // namespace kvtwin

#endif  // KVTWIN_MODELS_CATALOG_HF_CONFIG_H_
