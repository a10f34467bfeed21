// Exports WEKA's files: every recorded field of every request, unchanged.

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>

#include "traces/format/text_file.h"
#include "traces/importers/importers.h"
#include "traces/importers/weka.h"

namespace kvtwin {
namespace {

using nlohmann::json;

constexpr size_t kTextBytesMax = size_t{512} << 20;  // the largest real session has 4 MiB

// Seconds with a decimal point, as WEKA writes them.
double seconds(int64_t ns) { return static_cast<double>(ns) / 1e9; }

json types_of(const json& code) {
  if (!code.is_number_unsigned()) return code;  // stored unchanged
  constexpr const char* kTypes[] = {"text", "thinking", "tool_result", "tool_use"};
  json types = json::array();
  for (unsigned bit = 0; bit < 4; ++bit) {
    if ((code.get<uint64_t>() >> bit & 1) != 0) types.push_back(kTypes[bit]);
  }
  return types;
}

class WekaText {
 public:
  WekaText(const v1::TraceHeader& header, const v1::Session& session) : header_(header), session_(session) {}

  Result<std::string> run() {
    const std::string* const fields = find_extra(session_.extras(), "weka");
    if (fields == nullptr) {
      return make_error(session_.id(), "was not imported from a WEKA trace",
                        "weka is exported from weka imports only");
    }
    json tree = json::parse(*fields, nullptr, false);
    if (!tree.is_object()) return make_error(session_.id(), "its \"weka\" extra is no object");
    tree["id"] = session_.id();
    std::string requests;
    if (auto good = main_requests(&requests); !good) return tl::unexpected(good.error());
    return with_requests(tree, requests);
  }

 private:
  static std::string with_requests(const json& tree, const std::string& requests) {
    std::string out = tree.dump(-1, ' ', true, json::error_handler_t::replace);
    out.pop_back();  // the closing brace
    if (!tree.empty()) out.push_back(',');
    return out.append("\"requests\":[").append(requests).append("]}");
  }

  Result<void> main_requests(std::string* out) {
    if (auto good = agents_after(-1, out); !good) return good;
    for (int i = 0; i < session_.nodes_size(); ++i) {
      const v1::Node& node = session_.nodes(i);
      if (node.agent() != 0) continue;
      if (auto good = add_request(node, 0, out); !good) return good;
      if (auto good = agents_after(i, out); !good) return good;
    }
    return {};
  }

  // The node that spawned agent `a`; -1: it began the session, -2: none of it is left.
  int spawned_after(int a) const {
    for (const v1::Node& node : session_.nodes()) {
      if (node.agent() != static_cast<uint32_t>(a)) continue;
      return node.deps().empty() ? -1 : static_cast<int>(node.deps(0).node());
    }
    return -2;
  }

  // The sub-agents that follow node `after` of the main agent.
  Result<void> agents_after(int after, std::string* out) {
    for (int a = 1; a < session_.agents_size(); ++a) {
      if (spawned_after(a) != after) continue;
      const v1::Agent& agent = session_.agents(a);
      const std::string* const fields = find_extra(agent.extras(), "weka");
      const json tree = fields == nullptr ? json() : json::parse(*fields, nullptr, false);
      if (!tree.is_object())
        return make_error(session_.id(), fmt::format("agent {} has no \"weka\" extra", a));
      // Trap 1: `t` is the end; an async sub-agent has no duration, and `t` is its start.
      const double duration = tree.contains("duration_ms") && tree["duration_ms"].is_number()
                                  ? tree["duration_ms"].get<double>() * 1e6
                                  : 0.0;
      const double end = tree.contains("t") && tree["t"].is_number() ? tree["t"].get<double>() * 1e9 : 0.0;
      const int64_t start = std::llround(end) - std::min(std::llround(duration), std::llround(end));
      std::string requests;
      for (const v1::Node& node : session_.nodes()) {
        if (node.agent() != static_cast<uint32_t>(a) || !node.has_llm()) continue;
        if (auto good = add_request(node, start, &requests); !good) return good;
      }
      if (!out->empty()) out->push_back(',');
      *out += with_requests(tree, requests);
    }
    return {};
  }

  Result<void> add_request(const v1::Node& node, int64_t origin_ns, std::string* out) {
    if (!node.has_llm()) return make_error(session_.id(), "a main agent's node is no request");
    const v1::LlmRequest& request = node.llm();
    const auto ids = decode_key(request.prompt_key());
    if (!ids) return make_error(session_.id(), ids.error().what, ids.error().hint);
    json fields = {{"t", seconds(request.recorded_at_ns() - origin_ns)},
                   {"type", request.streaming() ? "s" : "n"},
                   {"in", request.prompt_tokens()},
                   {"out", request.output_tokens()},
                   {"stop", request.stop_reason()}};
    if (request.model() < static_cast<uint32_t>(header_.models_size())) {
      fields["model"] = header_.models(static_cast<int>(request.model()));
    }
    if (marked(node, v1::LlmRequest::kRecordedServiceNsFieldNumber) == v1::PROV_UNSPECIFIED) {
      fields["api_time"] = seconds(request.recorded_service_ns());
    }
    if (marked(node, v1::LlmRequest::kRecordedTtftNsFieldNumber) == v1::RECORDED) {
      fields["ttft"] = seconds(request.recorded_ttft_ns());
    }
    if (const std::string* const think = find_extra(node.extras(), "think_ns")) {
      const json value = json::parse(*think, nullptr, false);
      if (value.is_number_integer()) fields["think_time"] = seconds(value.get<int64_t>());
    } else if (marked(node, v1::LlmRequest::kThinkNsFieldNumber) == v1::PROV_UNSPECIFIED) {
      fields["think_time"] = seconds(request.think_ns());
    }
    if (const std::string* const io = find_extra(node.extras(), "io")) {
      const json codes = json::parse(*io, nullptr, false);
      if (codes.is_array() && codes.size() == 2) {
        fields["input_types"] = types_of(codes[0]);
        fields["output_types"] = types_of(codes[1]);
      }
    }
    if (!out->empty()) out->push_back(',');
    *out += fields.dump(-1, ' ', true, json::error_handler_t::replace);
    out->pop_back();
    *out += ",\"hash_ids\":[";
    for (const IdRun& run : *ids) {
      if (run.scope != v1::SCOPE_GLOBAL) continue;
      return make_error(session_.id(), "its prompts were made to share their prefixes on import",
                        "export a trace that was imported with --sharing=none");
    }
    if (auto good = list_ids(*ids, ",", out); !good)
      return make_error(session_.id(), good.error().what, good.error().hint);
    if (out->size() > kTextBytesMax) {
      return make_error(session_.id(), fmt::format("takes more than {} MiB as JSON", kTextBytesMax >> 20),
                        "cut it");
    }
    *out += "]}";
    return {};
  }

  const v1::TraceHeader& header_;
  const v1::Session& session_;
};

class WekaExport : public TraceSink {
 public:
  explicit WekaExport(const std::string& path) : path_(path) {}

  Result<void> header(const v1::TraceHeader& header) override {
    header_ = header;
    std::error_code error;
    std::filesystem::create_directories(path_, error);
    if (!error) return {};
    return make_error(path_, fmt::format("cannot be made: {}", error.message()), "a directory");
  }

  Result<void> shared_spans(const v1::SharedSpanTable&) override { return {}; }

  Result<void> session(const v1::Session& session) override {
    const std::string& id = session.id();
    const auto plain = [](char c) {
      return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-';
    };
    if (id.empty() || id.size() > 200 || !std::all_of(id.begin(), id.end(), plain)) {
      return make_error(path_, fmt::format("session '{}' cannot name a file", id.substr(0, 60)),
                        "letters, digits, - and _");
    }
    const auto text = weka_text(header_, session);
    if (!text) return tl::unexpected(text.error());
    TextFile file((std::filesystem::path(path_) / (id + ".json")).string());
    if (auto good = file.open(); !good) return good;
    if (auto good = file.write(*text); !good) return good;
    return file.commit();
  }

 private:
  const std::string path_;
  v1::TraceHeader header_;
};

}  // namespace

Result<std::string> weka_text(const v1::TraceHeader& header, const v1::Session& session) {
  return WekaText(header, session).run();
}

std::unique_ptr<TraceSink> export_weka(const std::string& path) { return std::make_unique<WekaExport>(path); }

}  // namespace kvtwin
