// mooncake: rows of one session_id are a closed-loop chain, other rows are sessions of one request.
//
// --infer-sessions: most files have no session ids, but the ids of a prompt show whether it continues
// another. The parent of a request is the latest earlier request whose last full block is on its chain and
// whose prompt and output fit into its prompt (with a block of slack). Waits are then ESTIMATED.

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "engine/base/prng.h"
#include "traces/importers/importers.h"
#include "traces/importers/mooncake.h"

namespace kvtwin {
namespace {

constexpr uint32_t kThinkField = v1::LlmRequest::kThinkNsFieldNumber;

class MooncakeImport {
 public:
  MooncakeImport(const std::string& path, const ImportOptions& options, TraceSink* sink)
      : path_(path), options_(options), sink_(sink) {}

  Result<void> run() {
    const uint32_t block = options_.block_tokens != 0 ? options_.block_tokens : kMooncakeBlockTokens;
    auto rows = read_mooncake_rows(path_, block);
    if (!rows) return tl::unexpected(rows.error());
    rows_ = std::move(*rows);
    note_missing_ids(options_, rows_, block);
    if (auto good = make_parents(block); !good) return good;
    v1::TraceHeader header = mooncake_header("mooncake", path_, options_, rows_);
    header.set_request_arrivals(v1::ARR_OPEN_LOOP);
    if (options_.infer_sessions) add_policy(&header, "Dep.kind", v1::ESTIMATED, kMooncakeSessionRecipe);
    if (options_.jitter_ns == 0 && header.time_resolution_ns() >= 1e9) {
      note(options_,
           fmt::format("stamps come in batches of {:.1f} s: without --jitter the bursts are an artefact",
                       header.time_resolution_ns() / 1e9));
    }
    if (auto good = sink_->header(header); !good) return good;
    if (auto good = emit_sessions(); !good) return good;
    return sink_->done();
  }

 private:
  Result<void> make_parents(uint32_t block) {
    parents_.assign(rows_.size(), -1);
    const bool named =
        std::any_of(rows_.begin(), rows_.end(), [](const auto& row) { return !row.session.empty(); });
    if (options_.infer_sessions) {
      if (named) return make_error(path_, "has session ids already", "import it without --infer-sessions");
      parents_ = infer_mooncake_parents(rows_, block);
    } else if (named) {
      std::map<std::string, int64_t> latest;
      for (size_t i = 0; i < rows_.size(); ++i) {
        if (rows_[i].session.empty()) continue;
        const auto [it, added] = latest.emplace(rows_[i].session, i);
        if (!added) parents_[i] = std::exchange(it->second, static_cast<int64_t>(i));
      }
    }
    for (size_t i = 0; i < rows_.size(); ++i) {
      if (parents_[i] < 0 && !rows_[i].at_ns) {
        return make_error(fmt::format("{}:{}", path_, rows_[i].line), "has no timestamp",
                          "the first row of a session arrives at one");
      }
    }
    return {};
  }

  int64_t jittered(size_t i) const {
    const int64_t at = rows_[i].at_ns.value_or(0);
    if (options_.jitter_ns <= 0) return at;
    return at + static_cast<int64_t>(draw({options_.seed, rows_[i].line, 1}) %
                                     static_cast<uint64_t>(options_.jitter_ns));
  }

  Result<void> emit_sessions() {
    std::vector<size_t> root(rows_.size());
    std::vector<size_t> roots;
    std::vector<std::vector<size_t>> members(rows_.size());
    for (size_t i = 0; i < rows_.size(); ++i) {
      root[i] = parents_[i] < 0 ? i : root[static_cast<size_t>(parents_[i])];
      if (parents_[i] < 0) roots.push_back(i);
      members[root[i]].push_back(i);
    }
    // Jitter changes the order within a batch, and the sessions of a file are in order of arrival.
    std::stable_sort(roots.begin(), roots.end(),
                     [&](size_t a, size_t b) { return jittered(a) < jittered(b); });
    for (const size_t first : roots) {
      if (auto good = emit(members[first]); !good) return good;
    }
    return {};
  }

  Result<void> emit(const std::vector<size_t>& members) {
    const MooncakeRow& first = rows_[members.front()];
    const std::string id = first.session.empty() ? fmt::format("{}", first.line) : first.session;
    start_mooncake_session(id, jittered(members.front()), &session_);
    if (!first.session.empty()) add_extra(session_.mutable_extras(), "named", "true");
    std::map<size_t, uint32_t> node_of;
    for (const size_t i : members) {
      const auto index = static_cast<uint32_t>(session_.nodes_size());
      node_of[i] = index;
      v1::Node& node = *add_mooncake_request(rows_[i], true, &session_);
      stamp(i, &node);
      if (parents_[i] < 0) continue;
      const auto parent = static_cast<size_t>(parents_[i]);
      v1::Dep& dep = *node.add_deps();
      dep.set_node(node_of.at(parent));
      const bool data = common_blocks(rows_[parent].ids, rows_[i].ids) > 0;
      dep.set_kind(data ? v1::DEP_DATA : v1::DEP_CONTROL);
      node.mutable_llm()->set_turn(session_.nodes(static_cast<int>(dep.node())).llm().turn() + 1);
      wait(i, parent, dep.node(), &node);
    }
    return sink_->session(session_);
  }

  void stamp(size_t i, v1::Node* node) const {
    constexpr uint32_t kAt = v1::LlmRequest::kRecordedAtNsFieldNumber;
    if (!rows_[i].at_ns) {
      mark(node, kAt, v1::UNKNOWN);
      return;
    }
    const int64_t at = jittered(i);
    node->mutable_llm()->set_recorded_at_ns(at);
    if (at != *rows_[i].at_ns)
      add_extra(node->mutable_extras(), "timestamp_ns", fmt::format("{}", *rows_[i].at_ns));
  }

  // The wait after the parent: a recorded delay, or the gap less an estimated service time.
  void wait(size_t i, size_t parent, uint32_t parent_node, v1::Node* node) {
    if (rows_[i].delay_ns) {
      node->mutable_llm()->set_think_ns(*rows_[i].delay_ns);
      return;
    }
    if (!rows_[i].at_ns || !rows_[parent].at_ns) {
      mark(node, kThinkField, v1::UNKNOWN);
      return;
    }
    const int64_t gap = std::max<int64_t>(0, jittered(i) - jittered(parent));
    v1::Node& before = *session_.mutable_nodes(static_cast<int>(parent_node));
    int64_t service =
        std::min(gap, estimated_service_ns(rows_[parent].prompt_tokens, rows_[parent].output_tokens));
    // One service time for all requests that wait for the same one: the gap to the first child bounds it.
    if (before.llm().recorded_service_ns() != 0) {
      service = before.llm().recorded_service_ns();
    } else {
      before.mutable_llm()->set_recorded_service_ns(service);
      mark(&before, v1::LlmRequest::kRecordedServiceNsFieldNumber, v1::ESTIMATED, kMooncakeServiceRecipe);
    }
    node->mutable_llm()->set_think_ns(std::max<int64_t>(0, gap - service));
    mark(node, kThinkField, v1::ESTIMATED, kMooncakeServiceRecipe);
  }

  const std::string& path_;
  const ImportOptions& options_;
  TraceSink* const sink_;
  std::vector<MooncakeRow> rows_;
  std::vector<int64_t> parents_;
  v1::Session session_;
};

}  // namespace

Result<void> import_mooncake(const std::string& path, const ImportOptions& options, TraceSink* sink) {
  return MooncakeImport(path, options, sink).run();
}

}  // namespace kvtwin
