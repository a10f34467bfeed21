// Rotation frequencies of a model: the meaning of RopeSpec.
//
// Sources: Hugging Face transformers, modeling_rope_utils (default, linear, llama3, yarn); YaRN is Peng et
// al. 2023. Frequencies are rounded to fp32 once, as in transformers.

#ifndef KVTWIN_MODELS_CATALOG_ROPE_H_
#define KVTWIN_MODELS_CATALOG_ROPE_H_

#include <vector>

#include "models/catalog/llm.h"

namespace kvtwin {

struct RopeFrequencies {
  std::vector<float> inverse;  // [head_dim / 2]: the angle of pair i at position p is p * inverse[i]
  float scale = 1;             // factor of cosines and sines
};

// REQUIRES: check_dense(llm).
RopeFrequencies rope_frequencies(const LlmSpec& llm);

}  // namespace kvtwin

#endif  // KVTWIN_MODELS_CATALOG_ROPE_H_
