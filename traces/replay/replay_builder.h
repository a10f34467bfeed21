// ReplayBuilder turns a canonical trace, pushed into it record by record, into a ReplayClient.
//
// It checks its input: dependencies point backwards, every node has a kind, times and counts are within
// bounds. It stores flat arrays (replay_table.h) and nothing of protobuf.

#ifndef KVTWIN_TRACES_REPLAY_REPLAY_BUILDER_H_
#define KVTWIN_TRACES_REPLAY_REPLAY_BUILDER_H_

#include <map>
#include <memory>

#include "traces/format/sink.h"
#include "traces/replay/replay.h"
#include "traces/replay/replay_identity.h"

namespace kvtwin {

class ReplayBuilder : public TraceSink {
 public:
  // Requests will carry the roles of their prompts' tokens. Call before the trace is read.
  void keep_roles() { roles_ = true; }
  // Requests will carry what their prompts ask. Call before the trace is read.
  void keep_spans() { spans_ = true; }

  Result<void> header(const v1::TraceHeader& header) override;
  Result<void> shared_spans(const v1::SharedSpanTable& table) override;
  Result<void> session(const v1::Session& session) override;

  // REQUIRES: called once. Fails on options that are invalid or that this trace cannot serve.
  Result<std::unique_ptr<ReplayClient>> build(const ReplayOptions& options);

 private:
  struct Policies {
    Provenance prompt{}, output{}, think{}, tool{}, opaque{};
  };
  Result<void> node(const v1::Session& session, int index, const std::string& where);
  Result<void> request(const v1::Session& session, const v1::Node& node, TableNode* row,
                       const std::string& where);
  Result<void> deps(const v1::Session& session, int index, const std::string& where);
  void link(const v1::Session& session);
  void cut(const ReplayOptions& options);

  void roles(const v1::Session& session, const v1::LlmRequest& request, TableNode* row);

  bool header_seen_ = false;
  bool roles_ = false, spans_ = false;
  std::map<uint32_t, v1::SharedSpanTable> shared_;  // only with keep_roles() or keep_spans()
  Policies policies_;
  IdentityStore identities_;
  ReplayTable table_;
};

}  // namespace kvtwin

#endif  // KVTWIN_TRACES_REPLAY_REPLAY_BUILDER_H_
