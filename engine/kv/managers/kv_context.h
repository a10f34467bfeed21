// KvContext is what the KV managers and the scheduler of one engine have in common: its configuration, the
// progress of its requests, the plan in the making, and where decisions go.

#ifndef KVTWIN_ENGINE_KV_MANAGERS_KV_CONTEXT_H_
#define KVTWIN_ENGINE_KV_MANAGERS_KV_CONTEXT_H_

#include <optional>
#include <utility>
#include <vector>

#include "engine/kv/decision_digest.h"
#include "engine/kv/launch.h"
#include "engine/kv/request_progress.h"
#include "engine/methods/axes.h"
#include "engine/methods/config.h"
#include "engine/methods/retention.h"

namespace kvtwin {

struct KvContext {
  KvContext(const CoreConfig& c, PolicyAxes policies)
      : config(c), axes(std::move(policies)), retention(config, axes) {}
  KvContext(const KvContext&) = delete;
  KvContext& operator=(const KvContext&) = delete;

  const CoreConfig config;
  const PolicyAxes axes;
  const Retention retention;
  std::vector<RequestProgress> progress;  // by RequestIndex
  StepFence steps;
  StepDraft draft;
  DecisionDigest digest;
  std::vector<Command>* out = nullptr;  // of the event being applied

  // The namespace of a session's prefixes; nullopt: they are not cached.
  std::optional<uint64_t> name_space(SessionId session) const {
    return config.prefix_cache ? axes.identity->name_space(session) : std::nullopt;
  }
  bool reserves_all() const { return config.admission == AdmissionKind::kFullReservation; }
  // Tokens whose pages must be available to admit a request with `cached` tokens and an entry of `tokens`.
  uint32_t tokens_covered(const RequestProgress& request, uint32_t cached, uint32_t tokens) const {
    if (reserves_all()) return request.prompt + request.output;
    return config.admission == AdmissionKind::kFullPrompt ? request.known() : cached + tokens;
  }
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_KV_MANAGERS_KV_CONTEXT_H_
