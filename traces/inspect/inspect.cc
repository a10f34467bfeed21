#include "traces/inspect/inspect.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "engine/base/plural.h"
#include "engine/base/units.h"
#include "traces/importers/importers.h"

namespace kvtwin {
namespace {

using nlohmann::ordered_json;

constexpr uint64_t kHeadRequestsMin = 3;

ordered_json distribution(const std::vector<int64_t>& sorted, double unit) {
  ordered_json out;
  out["n"] = sorted.size();
  if (sorted.empty()) return out;
  const auto at = [&](uint64_t percent) {  // the nearest rank: ceil(percent / 100 * n)
    return static_cast<double>(sorted[div_ceil<uint64_t>(percent * sorted.size(), 100) - 1]) / unit;
  };
  double sum = 0;
  for (const int64_t value : sorted) sum += static_cast<double>(value);
  out["mean"] = sum / static_cast<double>(sorted.size()) / unit;
  out["p50"] = at(50);
  out["p90"] = at(90);
  out["p99"] = at(99);
  out["max"] = at(100);
  return out;
}

std::string prov_name(v1::Prov prov) {
  std::string name = v1::Prov_Name(prov);
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  return name == "prov_unspecified" ? "unspecified" : name;
}

ordered_json fractions(const std::map<v1::Prov, uint64_t>& amounts) {
  uint64_t total = 0;
  for (const auto& [prov, amount] : amounts) total += amount;
  ordered_json out = ordered_json::object();
  for (const auto& [prov, amount] : amounts) {
    if (amount != 0) out[prov_name(prov)] = static_cast<double>(amount) / static_cast<double>(total);
  }
  return out;
}

}  // namespace

Result<void> TraceInspector::header(const v1::TraceHeader& header) {
  header_ = header;
  for (const v1::FieldPolicy& policy : header.policies()) policies_[policy.field()] = policy.prov();
  reuse_.header(header);
  for (size_t i = 0; i < windows_.size(); ++i) windows_[i].tokens = uint64_t{32768} << i;
  return {};
}

Result<void> TraceInspector::shared_spans(const v1::SharedSpanTable& table) {
  shared_spans_ += static_cast<uint64_t>(table.spans_size());
  reuse_.shared_spans(table);
  return {};
}

void TraceInspector::count_prov(const v1::Node& node, const char* field, uint32_t number, uint64_t amount,
                                std::map<v1::Prov, uint64_t>* fractions) const {
  v1::Prov prov = marked(node, number);
  if (prov == v1::PROV_UNSPECIFIED) {
    const auto policy = policies_.find(field);
    if (policy != policies_.end()) prov = policy->second;
  }
  (*fractions)[prov] += amount;
}

void TraceInspector::request(const v1::Node& node) {
  const v1::LlmRequest& request = node.llm();
  prompt_.push_back(request.prompt_tokens());
  output_.push_back(request.output_tokens());
  if (!node.deps().empty()) think_.push_back(request.think_ns());
  if (request.recorded_service_ns() != 0 &&
      marked(node, v1::LlmRequest::kRecordedServiceNsFieldNumber) != v1::ESTIMATED) {
    service_.push_back(request.recorded_service_ns());
  }
  count_prov(node, "LlmRequest.prompt_tokens", v1::LlmRequest::kPromptTokensFieldNumber,
             request.prompt_tokens(), &prompt_prov_);
  count_prov(node, "LlmRequest.output_tokens", v1::LlmRequest::kOutputTokensFieldNumber,
             request.output_tokens(), &output_prov_);
  count_prov(node, "LlmRequest.think_ns", v1::LlmRequest::kThinkNsFieldNumber,
             static_cast<uint64_t>(request.think_ns()), &wait_prov_);
}

void TraceInspector::windows(const v1::Session& session) {
  for (Window& window : windows_) {
    uint64_t head = 0;
    bool open = true;
    for (const v1::Node& node : session.nodes()) {
      if (!node.has_llm()) continue;
      const bool fits = uint64_t{node.llm().prompt_tokens()} + node.llm().output_tokens() <= window.tokens;
      window.requests += fits;
      if (node.agent() != 0) continue;
      open = open && fits;
      head += open;
    }
    window.all_head_requests += head;
    if (head < kHeadRequestsMin) continue;
    ++window.heads;
    window.head_requests += head;
  }
}

Result<void> TraceInspector::session(const v1::Session& session) {
  ++sessions_;
  sub_agents_ += static_cast<uint64_t>(session.agents_size() - 1);
  int64_t requests = 0;
  for (const v1::Node& node : session.nodes()) {
    if (node.has_llm()) ++requests, request(node);
    opaque_ += node.has_opaque();
    if (!node.has_tool()) continue;
    ++tools_;
    tool_.push_back(node.tool().duration_ns());
    count_prov(node, "ToolCall.duration_ns", v1::ToolCall::kDurationNsFieldNumber,
               static_cast<uint64_t>(node.tool().duration_ns()), &wait_prov_);
  }
  per_session_.push_back(requests);
  windows(session);
  reuse_.session(session);
  return {};
}

Result<void> TraceInspector::done() {
  for (auto* const values : {&prompt_, &output_, &per_session_, &think_, &tool_, &service_}) {
    std::sort(values->begin(), values->end());
  }
  return {};
}

ordered_json TraceInspector::json() const {
  ordered_json out;
  out["source"] = header_.source().name();
  out["file"] = header_.source().file();
  out["sessions"] = sessions_;
  out["requests"] = prompt_.size();
  out["tool_calls"] = tools_;
  out["sub_agents"] = sub_agents_;
  out["opaque_agents"] = opaque_;
  out["prompt_tokens"] = std::accumulate(prompt_.begin(), prompt_.end(), int64_t{0});
  out["output_tokens"] = std::accumulate(output_.begin(), output_.end(), int64_t{0});
  ordered_json& per = out["distributions"];
  per["prompt_tokens"] = distribution(prompt_, 1);
  per["output_tokens"] = distribution(output_, 1);
  per["requests_per_session"] = distribution(per_session_, 1);
  per["think_s"] = distribution(think_, 1e9);
  per["tool_s"] = distribution(tool_, 1e9);
  per["recorded_service_s"] = distribution(service_, 1e9);
  const Reuse& reuse = reuse_.result();
  ordered_json& ideal = out["ideal_reuse"];
  ideal["identified_tokens"] = reuse.identified_tokens;
  ideal["in_session"] = reuse.in_session();
  ideal["in_trace"] = reuse.in_trace();
  ordered_json& prov = out["provenance"];
  prov["prompt_tokens"] = fractions(prompt_prov_);
  prov["output_tokens"] = fractions(output_prov_);
  prov["wait_time"] = fractions(wait_prov_);
  for (const Window& window : windows_) {
    ordered_json entry;
    entry["tokens"] = window.tokens;
    entry["requests_that_fit"] =
        prompt_.empty() ? 0.0 : static_cast<double>(window.requests) / static_cast<double>(prompt_.size());
    entry["sessions_with_head"] = window.heads;
    entry["requests_in_these_heads"] = window.head_requests;
    entry["requests_in_all_heads"] = window.all_head_requests;
    out["windows"].push_back(std::move(entry));
  }
  return out;
}

std::string TraceInspector::table() const {
  const ordered_json all = json();
  const std::string& file = header_.source().file();  // a synthesised trace has none
  const std::string& source = header_.source().name();
  std::string out = fmt::format(
      "{}: {} {}, {} {}, {} {}, {} {}\n", file.empty() ? source : fmt::format("{} ({})", file, source),
      sessions_, plural(sessions_, "session"), prompt_.size(), plural(prompt_.size(), "request"), tools_,
      plural(tools_, "tool call"), sub_agents_, plural(sub_agents_, "sub-agent"));
  out += fmt::format("{} prompt tokens, {} output tokens\n\n", all["prompt_tokens"].get<int64_t>(),
                     all["output_tokens"].get<int64_t>());
  out += fmt::format("{:<22}{:>10}{:>14}{:>14}{:>14}{:>14}{:>14}\n", "", "n", "mean", "p50", "p90", "p99",
                     "max");
  for (const auto& [name, values] : all["distributions"].items()) {
    if (values["n"] == 0) continue;
    const int digits = name.ends_with("_s") ? 3 : 0;
    out += fmt::format("{:<22}{:>10}", name, values["n"].get<uint64_t>());
    for (const char* const column : {"mean", "p50", "p90", "p99", "max"}) {
      out += fmt::format("{:>14.{}f}", values[column].get<double>(), digits);
    }
    out += '\n';
  }
  const Reuse& reuse = reuse_.result();
  out +=
      fmt::format("\nideal reuse of {} identified prompt tokens: {:.1f} % within sessions, {:.1f} % in all\n",
                  reuse.identified_tokens, 100 * reuse.in_session(), 100 * reuse.in_trace());
  for (const auto& [what, amounts] : all["provenance"].items()) {
    out += fmt::format("{:<22}", what);
    for (const auto& [prov, fraction] : amounts.items())
      out += fmt::format(" {} {:.1f} %", prov, 100 * fraction.get<double>());
    out += '\n';
  }
  out += fmt::format("\n{:>10}{:>20}{:>22}{:>16}{:>24}\n", "window", "requests that fit",
                     "sessions, head >= 3", "their requests", "requests of all heads");
  for (const Window& window : windows_) {
    out += fmt::format(
        "{:>10}{:>18.1f} %{:>22}{:>16}{:>24}\n", window.tokens,
        prompt_.empty() ? 0.0
                        : 100.0 * static_cast<double>(window.requests) / static_cast<double>(prompt_.size()),
        window.heads, window.head_requests, window.all_head_requests);
  }
  return out;
}

}  // namespace kvtwin
