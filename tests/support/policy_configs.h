// The configuration that the decision tables start from: small, and one thing at a time.

#ifndef KVTWIN_TESTS_SUPPORT_POLICY_CONFIGS_H_
#define KVTWIN_TESTS_SUPPORT_POLICY_CONFIGS_H_

#include "engine/policy/config.h"

namespace kvtwin::testing {

// 100 pages of 16, 64 tokens a step, one step in flight, nothing folded, no prefix cache, watermark
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

}  // namespace kvtwin::testing

#endif  // KVTWIN_TESTS_SUPPORT_POLICY_CONFIGS_H_
