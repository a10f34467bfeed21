#include "models/serving/server_profile.h"

#include <fmt/format.h>
#include <google/protobuf/text_format.h>

#include <algorithm>
#include <utility>

#include "models/files/textproto.h"
#include "traces/proto/server_profile.pb.h"

namespace kvtwin {
namespace {

constexpr std::string_view kHeader = "# proto-message: kvtwin.v1.ServerProfile";
constexpr double kHostNsMax = 1e9, kFactorMax = 100;
constexpr int64_t kFirstStepNsMax = int64_t{600} * 1'000'000'000;

Result<void> check_times(const ServerTimes& times, const std::string& where) {
  for (const auto& [name, value] :
       {std::pair{"host_step_ns", times.host_step_ns}, std::pair{"host_request_ns", times.host_request_ns}}) {
    if (!(value >= 0 && value <= kHostNsMax))
      return make_error(where, fmt::format("{} is {}", name, value), "0 to 1e9");
  }
  for (const auto& [name, value] : {std::pair{"weights", times.weights}, std::pair{"kv", times.kv},
                                    std::pair{"prefill", times.prefill}}) {
    if (!(value > 0 && value <= kFactorMax))
      return make_error(where, fmt::format("{} is {}", name, value), "more than 0, at most 100");
  }
  if (times.first_step_ns < 0 || times.first_step_ns > kFirstStepNsMax)
    return make_error(where, fmt::format("first_step_ns is {}", times.first_step_ns), "0 to 600 s");
  return {};
}

}  // namespace

bool is_server_profile(std::string_view text) {
  return text.substr(0, 512).find(kHeader) != std::string_view::npos;
}

Result<ServerProfile> parse_server_profile(std::string_view text, const std::string& where) {
  v1::ServerProfile in;
  if (auto ok = parse_textproto(text, where, &in); !ok) return tl::unexpected<Error>(ok.error());
  ServerProfile out{.name = in.name(),
                    .source = in.source(),
                    .model = in.model(),
                    .device = in.device(),
                    .tensor_parallel = std::max(1u, in.tensor_parallel()),
                    .base = in.base(),
                    .times = {.host_step_ns = in.host_step_ns(),
                              .host_request_ns = in.host_request_ns(),
                              .weights = in.has_weights() ? in.weights() : 1,
                              .kv = in.has_kv() ? in.kv() : 1,
                              .prefill = in.has_prefill() ? in.prefill() : 1,
                              .first_step_ns = in.first_step_ns()},
                    .seen = {.requests = in.seen().requests(),
                             .prompt_tokens_max = in.seen().prompt_tokens_max(),
                             .context_tokens_max = in.seen().context_tokens_max(),
                             .running_max = in.seen().running_max(),
                             .residual_percent = in.seen().residual_percent()}};
  if (auto ok = check_times(out.times, where); !ok) return tl::unexpected<Error>(ok.error());
  return out;
}

std::string server_profile_textproto(const ServerProfile& profile) {
  v1::ServerProfile out;
  out.set_name(profile.name), out.set_source(profile.source), out.set_model(profile.model);
  out.set_device(profile.device), out.set_tensor_parallel(profile.tensor_parallel);
  out.set_base(profile.base);
  const ServerTimes& times = profile.times;
  out.set_host_step_ns(times.host_step_ns), out.set_host_request_ns(times.host_request_ns);
  out.set_weights(times.weights), out.set_kv(times.kv), out.set_prefill(times.prefill);
  out.set_first_step_ns(times.first_step_ns);
  v1::ServerProfile::Range& seen = *out.mutable_seen();
  seen.set_requests(profile.seen.requests), seen.set_prompt_tokens_max(profile.seen.prompt_tokens_max);
  seen.set_context_tokens_max(profile.seen.context_tokens_max);
  seen.set_running_max(profile.seen.running_max);
  seen.set_residual_percent(profile.seen.residual_percent);
  std::string text;
  google::protobuf::TextFormat::PrintToString(out, &text);
  return fmt::format("# proto-file: traces/proto/server_profile.proto\n{}\n{}", kHeader, text);
}

}  // namespace kvtwin
