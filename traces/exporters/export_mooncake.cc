// Exports Mooncake rows. Sessions must be chains of requests, because the format has no sub-agents.
//
// Ids of session scope are shifted so that sessions do not share them. Requests without identity get ids of
// their own.

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/base/units.h"
#include "traces/format/text_file.h"
#include "traces/importers/importers.h"
#include "traces/importers/mooncake.h"

namespace kvtwin {
namespace {

class MooncakeExport : public TraceSink {
 public:
  explicit MooncakeExport(const std::string& path) : file_(path) {}

  Result<void> header(const v1::TraceHeader& header) override {
    block_ = header.block_tokens() != 0 ? header.block_tokens() : kMooncakeBlockTokens;
    // In a trace with think times, delays are more accurate than time stamps.
    stamped_ = header.request_arrivals() == v1::ARR_OPEN_LOOP;
    return file_.open();
  }

  Result<void> shared_spans(const v1::SharedSpanTable&) override { return {}; }

  Result<void> session(const v1::Session& session) override {
    base_ = next_id_;
    waits_.assign(static_cast<size_t>(session.nodes_size()), 0);
    const auto requests = std::count_if(session.nodes().begin(), session.nodes().end(),
                                        [](const v1::Node& node) { return node.has_llm(); });
    const bool named = requests > 1 || find_extra(session.extras(), "named") != nullptr;
    int last_request = -1;
    for (int i = 0; i < session.nodes_size(); ++i) {
      if (auto good = follow(session, i, last_request); !good) return good;
      if (!session.nodes(i).has_llm()) continue;
      if (auto good = row(session, i, last_request < 0, named); !good) return good;
      last_request = i;
    }
    return {};
  }

  Result<void> done() override { return file_.commit(); }

 private:
  // Checks that node i continues the chain, and sums the waits since the last request.
  Result<void> follow(const v1::Session& session, int i, int last_request) {
    const v1::Node& node = session.nodes(i);
    int64_t wait = 0;
    for (const v1::Dep& dep : node.deps()) {
      const auto on = static_cast<int>(dep.node());
      if (on < last_request || dep.at_output_token() != 0) return no_chain(session, i);
      wait = std::max(wait, waits_[dep.node()] + dep.delay_ns());
    }
    if (node.has_opaque() || (node.deps().empty() && i != 0)) return no_chain(session, i);
    if (node.has_tool()) waits_[static_cast<size_t>(i)] = wait + node.tool().duration_ns();
    if (node.has_llm()) delay_ns_ = wait + node.llm().think_ns();
    return {};
  }

  tl::unexpected<Error> no_chain(const v1::Session& session, int i) const {
    return make_error(file_.path(), fmt::format("node {} of session '{}' branches", i, session.id()),
                      "Mooncake rows are chains: leave out sessions with sub-agents");
  }

  Result<void> row(const v1::Session& session, int i, bool first, bool named) {
    const v1::Node& node = session.nodes(i);
    const v1::LlmRequest& request = node.llm();
    const auto ids = prompt_ids(request);
    if (!ids) return tl::unexpected(ids.error());
    std::string out = "{";
    const bool has_stamp = marked(node, v1::LlmRequest::kRecordedAtNsFieldNumber) != v1::UNKNOWN && stamped_;
    if (first || has_stamp) {
      int64_t at = has_stamp ? request.recorded_at_ns() : session.arrival_at_ns() + node.start_offset_ns();
      if (const std::string* const stamp = find_extra(node.extras(), "timestamp_ns")) {
        at = nlohmann::json::parse(*stamp, nullptr, false).get<int64_t>();
      }
      out += at % 1'000'000 == 0 ? fmt::format("\"timestamp\": {}, ", at / 1'000'000)
                                 : fmt::format("\"timestamp\": {}, ", static_cast<double>(at) / 1e6);
    } else {
      out += fmt::format("\"delay\": {}, ", static_cast<double>(delay_ns_) / 1e6);
    }
    if (named) {
      out += fmt::format(
          "\"session_id\": {}, ",
          nlohmann::json(session.id()).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace));
    }
    out += fmt::format("\"input_length\": {}, \"output_length\": {}, \"hash_ids\": [",
                       request.prompt_tokens(), request.output_tokens());
    if (auto good = list_ids(*ids, ", ", &out); !good)
      return make_error(file_.path(), good.error().what, good.error().hint);
    return file_.write(out + "]}\n");
  }

  Result<IdRuns> prompt_ids(const v1::LlmRequest& request) {
    if (!request.has_prompt_key()) {
      const uint32_t blocks = div_ceil(request.prompt_tokens(), block_);
      IdRuns fresh{{next_id_, blocks, v1::SCOPE_DATASET}};
      next_id_ += blocks;
      renumbered_ = renumbered_ || blocks > 0;
      return fresh;
    }
    auto runs = decode_key(request.prompt_key());
    if (!runs) return make_error(file_.path(), runs.error().what, runs.error().hint);
    for (IdRun& run : *runs) {
      if (run.scope == v1::SCOPE_DATASET) {
        dataset_ = true;
      } else if (run.scope == v1::SCOPE_SESSION) {
        run.first += base_;
        next_id_ = std::max(next_id_, run.first + run.count);
        renumbered_ = true;
      } else {
        return make_error(file_.path(), fmt::format("block ids of scope {}", v1::Scope_Name(run.scope)),
                          "export a trace that was imported with --sharing=none");
      }
    }
    if (dataset_ && renumbered_) {
      return make_error(file_.path(), "some block ids hold in the data set and some in a session",
                        "a trace whose ids are of one kind");
    }
    return runs;
  }

  TextFile file_;
  uint32_t block_ = kMooncakeBlockTokens;
  bool stamped_ = false;
  bool dataset_ = false;
  bool renumbered_ = false;
  int64_t next_id_ = 0;
  int64_t base_ = 0;            // shift of this session's ids
  int64_t delay_ns_ = 0;        // of the current request, after the previous one
  std::vector<int64_t> waits_;  // of tools: from the previous request to their end
};

}  // namespace

std::unique_ptr<TraceSink> export_mooncake(const std::string& path) {
  return std::make_unique<MooncakeExport>(path);
}

}  // namespace kvtwin
