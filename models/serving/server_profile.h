// ServerProfile: the step times of one real server, fitted to its log by `kvtwin calibrate server`.

#ifndef KVTWIN_MODELS_SERVING_SERVER_PROFILE_H_
#define KVTWIN_MODELS_SERVING_SERVER_PROFILE_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "engine/base/result.h"

namespace kvtwin {

// The figures that a fit may change: six, none of them negative.
struct ServerTimes {
  double host_step_ns = 0;     // host time of a step
  double host_request_ns = 0;  // host time per request of a step
  double weights = 1;          // factor of the base model's step with empty contexts
  double kv = 1;               // factor of its time to read the contexts of decodes
  double prefill = 1;          // factor of its time for prompts
  int64_t first_step_ns = 0;   // additional time of the engine's first step
};

struct ServerProfile {
  std::string name, source, model, device;
  uint32_t tensor_parallel = 1;
  std::string base;  // kernel tables of the base model, relative to the file; "": the roofline
  ServerTimes times;
  struct Range {
    uint32_t requests = 0, prompt_tokens_max = 0, context_tokens_max = 0, running_max = 0;
    double residual_percent = 0;
  } seen;
};

// True if the text of a profile is a ServerProfile by its header line.
bool is_server_profile(std::string_view text);
Result<ServerProfile> parse_server_profile(std::string_view text, const std::string& where);
std::string server_profile_textproto(const ServerProfile& profile);

}  // namespace kvtwin

#endif  // KVTWIN_MODELS_SERVING_SERVER_PROFILE_H_
