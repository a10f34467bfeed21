// A small LLM of one KV head, and measurements with a spread, for tests of measured prices.

#ifndef KVTWIN_TESTS_UNIT_MODELS_TINY_DEVICE_H_
#define KVTWIN_TESTS_UNIT_MODELS_TINY_DEVICE_H_

#include "models/catalog/llm.h"
#include "models/cost_tables/measured_device.h"

namespace kvtwin {

inline LlmSpec tiny() {
  LlmSpec m;
  m.name = "tiny", m.layers = 3, m.query_heads = 4, m.kv_heads = 1, m.head_dim = 16;
  m.hidden = 64, m.intermediate = 128, m.vocab = 100, m.context_window = 4096;
  return m;
}

inline Measured us(double value) { return {value, value * 0.9, value * 1.2}; }

}  // namespace kvtwin

#endif  // KVTWIN_TESTS_UNIT_MODELS_TINY_DEVICE_H_
