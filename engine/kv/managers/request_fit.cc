#include "engine/kv/managers/request_fit.h"

#include <algorithm>

#include "engine/kv/store/mixed_precision_pool.h"
#include "engine/methods/registry.h"

namespace kvtwin {
namespace {

uint64_t tokens_of(const RequestReady& request) {
  return uint64_t{request.prompt_tokens} + request.output_tokens;
}

}  // namespace

// A preempted request is computed again, with its output so far as part of the prompt. With full reservation,
// no request is preempted.
PagesNeeded pages_needed_resident(const CoreConfig& config, uint32_t prompt_tokens, uint32_t output_tokens) {
  const uint32_t page = config.page_tokens, pages = div_ceil(prompt_tokens + output_tokens, page);
  if (config.admission != AdmissionKind::kFullReservation) return {pages, pages};
  const uint32_t held = gpu_pages_held(config.policies.retrieval_spec, page, pages);
  return {std::max(div_ceil(prompt_tokens, page), held), pages};
}

RequestFit::RequestFit(const CoreConfig& config, const PolicyAxes& axes, const Retention& retention)
    : config_(config), retention_(retention), kind_(kind_of(axes, retention)) {}

PagesNeeded RequestFit::needed(const RequestReady& request) const {
  const uint64_t tokens = tokens_of(request), pages = div_ceil(tokens, uint64_t{config_.page_tokens});
  if (tokens > UINT32_MAX) return {pages, kind_ == KvKind::kResident ? pages : 0};
  switch (kind_) {
    case KvKind::kResident:
      return pages_needed_resident(config_, request.prompt_tokens, request.output_tokens);
    case KvKind::kMixedPrecision:
      return {int4_pages(request), 0};
    case KvKind::kPaged:
    case KvKind::kGrouped:
      break;
  }
  // For a request that will be handed over, the output counts too: decoding engines usually have the same
  // size, and nothing is computed in vain.
  return {retention_.pages_needed(request.prompt_tokens, request.output_tokens), 0};
}

uint64_t RequestFit::int4_pages(const RequestReady& request) const {
  MixedPrecisionPool::Request probe;
  probe.prompt = request.prompt_tokens;
  bits_of(request.roles, request.turn, request.prompt_tokens, config_.policies.precision_spec, &probe.bits);
  return MixedPrecisionPool::demand_of(probe, static_cast<uint32_t>(tokens_of(request)), config_.pages_int2,
                                       config_.page_tokens)
      .pages_4;
}

PagesNeeded RequestFit::room() const {
  return {config_.pages_gpu - config_.pages_int2 - config_.watermark_pages, config_.pages_host};
}

std::optional<Misfit> RequestFit::misfit(const RequestReady& request) const {
  using Reason = RejectRequest::Reason;
  const uint64_t tokens = tokens_of(request);
  if (request.prompt_tokens == 0) return Misfit{Reason::kPromptEmpty, 1, 0};
  if (config_.context_tokens_max != 0 && tokens > config_.context_tokens_max) {
    return Misfit{Reason::kLongerThanWindow, tokens, config_.context_tokens_max};
  }
  const PagesNeeded pages = needed(request), most = room();
  if (tokens > UINT32_MAX || pages.gpu > most.gpu)
    return Misfit{Reason::kLargerThanPool, pages.gpu, most.gpu};
  if (pages.host > most.host) return Misfit{Reason::kLargerThanPool, pages.host, most.host};
  return std::nullopt;
}

}  // namespace kvtwin
