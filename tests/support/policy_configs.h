// The configuration that the decision tables start from: small, and one thing at a time.

#ifndef KVTWIN_TESTS_SUPPORT_POLICY_CONFIGS_H_
#define KVTWIN_TESTS_SUPPORT_POLICY_CONFIGS_H_

#include "engine/methods/config.h"

namespace kvtwin::testing {

// 100 pages of 16, 64 tokens a step, one step in flight, nothing coalesced, no prefix cache, watermark
// admission without a watermark.
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

// Prefixes are cached, and copied to a host of eight pages ahead of need: four pages on the gpu, of which
// three are to be clean.
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

// A request's KV is on the host, and what its steps read in resident pages on the gpu: 1 sink, 1 page to
// choose, 1 of window.
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
