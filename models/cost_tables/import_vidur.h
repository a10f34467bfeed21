// Converts kernel times of Vidur's profiling (github.com/microsoft/vidur, vidur/profiling) to a profile
// folder of ours (cost_tables.h).
//
// * mlp.csv: one row per (num_tokens, num_tensor_parallel_workers): time_stats.OPERATION.median, ms, of one
//   layer. The model is identified by n_head, n_kv_head, n_embd, n_expanded_embd, vocab_size.
// * attention.csv: one row per (batch_size, prefill_chunk_size, kv_cache_size, is_prefill, ...workers): the
//   same, of one prefill chunk or of decodes alone. The model is identified by n_q_head, n_kv_head, n_embd.
//
// Columns are found by name. meta.yaml lists other operations that were measured ("unread"), and a run's
// notes name them. A file may hold several models; rows of others are ignored. What Vidur does not measure
// stays unmeasured (cost_tables.h): the output head and the sampler, decodes together with chunks (Vidur
// launches them one after the other, and adds), unequal contexts, all-reduces.
//
// Our layernorm is Vidur's norm and the addition before it, which vLLM does in one kernel. Attention includes
// reshaping and writing the cache where the file has them.

#ifndef KVTWIN_MODELS_COST_TABLES_IMPORT_VIDUR_H_
#define KVTWIN_MODELS_COST_TABLES_IMPORT_VIDUR_H_

#include <string>
#include <utility>
#include <vector>

#include "engine/base/result.h"
#include "models/catalog/llm.h"

namespace kvtwin {

// A file's text and its path, for messages.
struct NamedText {
  std::string path, text;
};

// Files of the profile folder: (name in it, bytes). `gpu` is the device's name in meta.yaml.
using ProfileFolder = std::vector<std::pair<std::string, std::string>>;
Result<ProfileFolder> import_vidur(const NamedText& mlp, const NamedText& attention, const LlmSpec& llm,
                                   const std::string& gpu);

}  // namespace kvtwin

#endif  // KVTWIN_MODELS_COST_TABLES_IMPORT_VIDUR_H_
