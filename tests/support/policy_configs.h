// The configurations that the decision tables start from. They are small; each table changes one field or
// few.

#ifndef KVTWIN_TESTS_SUPPORT_POLICY_CONFIGS_H_
#define KVTWIN_TESTS_SUPPORT_POLICY_CONFIGS_H_

#include "engine/methods/config.h"

namespace kvtwin::testing {

// 100 pages of 16 tokens, 64 tokens per step, one step in flight, no coalesced steps, no prefix cache,
// watermark admission with a watermark of zero.
inline CoreConfig table_config() {
  CoreConfig config;
  config.page_tokens = config.unit_tokens = 16;
  config.pages_gpu = 100;
  config.step_tokens_max = 64;
  config.repeat_max = 1;
  config.prefix_cache = false;
  config.evict_batch_pages = 1;
  return config;
}

// Prefixes are cached and copied to eight host pages ahead of need. Of the four GPU pages, three are to have
// a host copy.
inline CoreConfig host_config() {
  CoreConfig config = table_config();
  config.prefix_cache = true;
  config.policies.placement = "host";
  config.pages_gpu = 4;
  config.pages_host = 8;
  config.offload_pages_target = 3;
  config.offload_batch_pages = 8;
  return config;
}

// KV of a request is on the host. Its steps read resident pages on the GPU: one of sinks, one selected page,
// one of the window.
inline CoreConfig resident_config() {
  CoreConfig config = table_config();
  config.policies.placement = "resident";
  config.policies.retrieval = "freekv";
  RetrievalSpec& spec = config.policies.retrieval_spec;
  spec.budget_tokens = 48;
  spec.sink_tokens = spec.window_tokens = 16;
  config.pages_gpu = 6;
  config.pages_host = 20;
  return config;
}

}  // namespace kvtwin::testing

#endif  // KVTWIN_TESTS_SUPPORT_POLICY_CONFIGS_H_
