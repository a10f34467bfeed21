#include "scenarios/serve/trace_replies.h"

#include <fmt/format.h>

#include <algorithm>

namespace kvtwin::serve {

Result<void> TraceReplies::header(const v1::TraceHeader& header) {
  tool_names_.assign(header.tool_names().begin(), header.tool_names().end());
  return {};
}

Result<void> TraceReplies::session(const v1::Session& session) {
  Replies& out = sessions_[session.id()];
  std::vector<size_t> reply_of(static_cast<size_t>(session.nodes_size()), SIZE_MAX);  // by node
  for (int i = 0; i < session.nodes_size(); ++i) {
    const v1::Node& node = session.nodes(i);
    if (node.has_llm()) {
      reply_of[static_cast<size_t>(i)] = out.replies.size();
      out.replies.push_back({std::max(1u, node.llm().output_tokens()), {}});
    } else if (node.has_tool()) {
      // A tool is called by the requests that it waits for.
      const uint32_t tool = node.tool().tool();
      const std::string name =
          tool > 0 && tool <= tool_names_.size() ? tool_names_[tool - 1] : std::string("tool");
      for (const v1::Dep& dep : node.deps()) {
        if (dep.node() < reply_of.size() && reply_of[dep.node()] != SIZE_MAX)
          out.replies[reply_of[dep.node()]].tools.push_back({name, fmt::format(R"({{"node":{}}})", i)});
      }
    }
  }
  return {};
}

const TraceReply* TraceReplies::next(const std::string& session) {
  const auto found = sessions_.find(session);
  if (found == sessions_.end() || found->second.next >= found->second.replies.size()) return nullptr;
  return &found->second.replies[found->second.next++];
}

}  // namespace kvtwin::serve
