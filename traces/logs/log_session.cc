#include "traces/logs/log_session.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>

#include "traces/importers/importers.h"
#include "traces/logs/log_prompts.h"

namespace kvtwin {
namespace {

// For each request, the earlier ones that it waits for: those that ended before it began and that no other
// request waited for when it began.
std::vector<std::vector<size_t>> waits_of(const std::vector<TimedRequest>& requests) {
  std::vector<std::vector<size_t>> waits(requests.size());
  std::vector<size_t> open;  // requests that nothing waits for yet
  for (size_t i = 0; i < requests.size(); ++i) {
    for (const size_t j : open) {
      if (requests[j].end_ns <= requests[i].start_ns) waits[i].push_back(j);
    }
    if (waits[i].empty()) {  // of several requests that begin after one, the first has taken it
      std::optional<size_t> latest;
      for (size_t j = 0; j < i; ++j) {
        const bool ended = requests[j].end_ns <= requests[i].start_ns;
        if (ended && (!latest || requests[j].end_ns >= requests[*latest].end_ns)) latest = j;
      }
      if (latest) waits[i].push_back(*latest);
    }
    for (const size_t j : waits[i]) std::erase(open, j);
    open.push_back(i);
  }
  return waits;
}

// The component of each request in the graph of waits, numbered in order of first requests.
std::vector<size_t> parts_of(const std::vector<std::vector<size_t>>& waits) {
  std::vector<size_t> up(waits.size());
  std::iota(up.begin(), up.end(), size_t{0});
  const auto root = [&up](size_t i) {
    while (up[i] != i) i = up[i] = up[up[i]];
    return i;
  };
  for (size_t i = 0; i < waits.size(); ++i) {
    for (const size_t j : waits[i]) {
      const size_t a = root(i), b = root(j);
      up[std::max(a, b)] = std::min(a, b);
    }
  }
  std::vector<size_t> part(waits.size()), number(waits.size(), SIZE_MAX);
  size_t parts = 0;
  for (size_t i = 0; i < waits.size(); ++i) {
    size_t& of_root = number[root(i)];
    if (of_root == SIZE_MAX) of_root = parts++;
    part[i] = of_root;
  }
  return part;
}

class OneSession {
 public:
  OneSession(std::string id, const TimedRequest& first, bool times_known, PrefixTokens* prefixes)
      : builder_(std::move(id), "", 0), prompts_(&builder_, prefixes), times_known_(times_known) {
    builder_.add_agent("main", "", 0, first.model);
    builder_.session().set_arrival_at_ns(first.start_ns);
  }

  // `waits`: nodes of this session.
  uint32_t add(const TimedRequest& request, const std::vector<std::pair<uint32_t, int64_t>>& waits) {
    std::optional<uint32_t> data;
    const uint32_t node = prompts_.add(request, &data);
    v1::LlmRequest& llm = builder_.llm(node);
    llm.set_model(request.model);
    describe(request, node);
    int64_t latest = INT64_MIN;
    uint32_t turn = 0;
    bool waits_for_data = false;
    for (const auto& [on, end_ns] : waits) {
      builder_.depend(node, on, data == on ? v1::DEP_DATA : v1::DEP_TEMPORAL);
      waits_for_data |= data == on;
      latest = std::max(latest, end_ns);
      turn = std::max(turn, builder_.llm(on).turn() + 1);
    }
    if (data && !waits_for_data && !waits.empty()) builder_.depend(node, *data, v1::DEP_DATA);
    llm.set_turn(turn);
    if (waits.empty()) {
      builder_.node(node).set_start_offset_ns(request.start_ns - builder_.session().arrival_at_ns());
    } else {
      llm.set_think_ns(std::max<int64_t>(0, request.start_ns - latest));
    }
    return node;
  }

  v1::Session take() { return builder_.take(); }

 private:
  void describe(const TimedRequest& request, uint32_t index) {
    v1::LlmRequest& llm = builder_.llm(index);
    v1::Node* const node = &builder_.node(index);
    const LoggedRequest& source = *request.source;
    llm.set_status(v1::OK);
    if (times_known_) {
      llm.set_recorded_at_ns(request.start_ns);
      llm.set_recorded_service_ns(request.end_ns - request.start_ns);
      if (source.first_token_ns && *source.first_token_ns >= *source.start_ns)
        llm.set_recorded_ttft_ns(*source.first_token_ns - *source.start_ns);
      if (request.end_estimated) {
        mark(node, v1::LlmRequest::kRecordedServiceNsFieldNumber, v1::ESTIMATED, 1);
        mark(node, v1::LlmRequest::kThinkNsFieldNumber, v1::ESTIMATED, 1);
      }
    }
    if (source.cached_tokens)
      llm.set_recorded_cache_read_tokens(
          static_cast<uint32_t>(std::min<uint64_t>(*source.cached_tokens, UINT32_MAX)));
    if (request.prompt_estimated) mark(node, v1::LlmRequest::kPromptTokensFieldNumber, v1::ESTIMATED, 2);
    if (request.output_estimated) mark(node, v1::LlmRequest::kOutputTokensFieldNumber, v1::ESTIMATED, 2);
  }

  SessionBuilder builder_;
  LogPrompts prompts_;
  const bool times_known_;
};

}  // namespace

std::vector<v1::Session> log_sessions(const std::string& id, const std::vector<TimedRequest>& requests,
                                      bool times_known, PrefixTokens* prefixes) {
  const std::vector<std::vector<size_t>> waits = waits_of(requests);
  const std::vector<size_t> part = parts_of(waits);
  const size_t parts = 1 + *std::max_element(part.begin(), part.end());
  std::vector<v1::Session> out;
  for (size_t p = 0; p < parts; ++p) {
    const auto first = static_cast<size_t>(std::find(part.begin(), part.end(), p) - part.begin());
    OneSession session(p == 0 ? id : fmt::format("{}/{}", id, p + 1), requests[first], times_known, prefixes);
    std::vector<uint32_t> node_of(requests.size());
    for (size_t i = first; i < requests.size(); ++i) {
      if (part[i] != p) continue;
      std::vector<std::pair<uint32_t, int64_t>> on;
      for (const size_t j : waits[i]) on.emplace_back(node_of[j], requests[j].end_ns);
      node_of[i] = session.add(requests[i], on);
    }
    out.push_back(session.take());
  }
  return out;
}

}  // namespace kvtwin
