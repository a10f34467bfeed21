// ReplayTable is a trace as the replay needs it: flat arrays and run-length coded identities, nothing of
// protobuf.
//
// About 140 bytes per node, 24 per dependency, 16 per identity run and 64 per session: the 692 WEKA sessions
// take 10 MB. ReplayBuilder makes it, ReplayClient owns it, and it does not change.

#ifndef KVTWIN_TRACES_REPLAY_REPLAY_TABLE_H_
#define KVTWIN_TRACES_REPLAY_REPLAY_TABLE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/prompt_spans.h"
#include "engine/base/tags.h"

namespace kvtwin {

enum class NodeKind : uint8_t { kRequest, kTool, kOpaqueAgent };

// Where the numbers of a run are comparable. The client turns it into UnitRun::space.
enum class RunScope : uint8_t {
  kSession,      // ids of the source, within one session and replica
  kDataset,      // ids of the source, within one replica
  kGlobal,       // ids of the source, everywhere
  kSessionTail,  // the same three, for a hashed last block that is not full
  kDatasetTail,
  kGlobalTail,
  kChainReplica,  // our numbers for chains with content of a session or data set
  kChainGlobal,   // our numbers for chains of global content
};

struct TableRun {
  uint64_t first = 0;  // in units
  uint32_t count = 0;
  RunScope scope{};
};

// In the order of v1::Prov, so that values convert directly.
enum class Provenance : uint8_t { kUnspecified, kRecorded, kDerived, kEstimated, kSynthesised, kUnknown };
constexpr size_t kProvenances = 6;

// `node` waits for the node that owns this edge.
struct TableEdge {
  int64_t delay_ns = 0;
  uint32_t node = 0;      // index in the session
  uint32_t at_token = 0;  // 0: on completion
  bool data = false;      // DEP_DATA
};

struct TableNode {
  int64_t wait_ns = 0;  // think time of a request, duration of a tool or an opaque agent
  int64_t start_offset_ns = 0;
  int64_t recorded_at_ns = 0;
  int64_t recorded_service_ns = 0;
  int64_t recorded_ttft_ns = 0;
  uint32_t edge_first = 0;  // nodes that wait for this one, ascending
  uint32_t edge_count = 0;
  uint32_t deps = 0;       // number of edges that end here
  uint32_t deps_data = 0;  // of these, DEP_DATA ones
  uint32_t prompt_tokens = 0;
  uint32_t output_tokens = 0;
  uint32_t abort_after = 0;  // 0: never
  uint32_t trigger_first = 0;
  uint32_t trigger_count = 0;
  uint32_t run_first = 0;  // identity; positions after the last run have none
  uint32_t run_count = 0;
  uint32_t role_first = 0;  // roles of the prompt's tokens; only if requested
  uint32_t role_count = 0;
  PromptSpans spans;  // only if requested
  uint32_t agent = 0;
  uint32_t model = 0;
  uint32_t tool = 0;  // of a tool: 1 + index of its name in the trace; 0: unknown
  uint32_t turn = 0;
  uint32_t index = 0;  // of a request: number of requests of its session before it
  NodeKind kind{};
  Provenance prompt_provenance{};
  Provenance output_provenance{};
  Provenance wait_provenance{};
};

struct TableSession {
  std::string id;
  int64_t arrival_ns = 0;
  uint32_t node_first = 0;
  uint32_t node_count = 0;  // less than was read after a head cut
};

struct ReplayTable {
  std::vector<TableSession> sessions;
  std::vector<TableNode> nodes;
  std::vector<TableEdge> edges;
  std::vector<uint32_t> triggers;
  std::vector<TableRun> runs;
  std::vector<RoleRun> roles;
  uint64_t roles_unknown = 0;  // tokens without a role in the trace: user text of their turn
  uint64_t requests = 0;
  uint64_t spans_unknown = 0;  // requests without spans; only if spans were requested
  uint32_t unit_tokens = 0;
  bool has_session_arrivals = false;
  bool has_request_times = false;
  bool has_tools = false;  // the source distinguishes tool time from think time
  bool has_deps = false;
  int64_t time_resolution_ns = 0;
  Provenance delay_provenance{};
};

}  // namespace kvtwin

#endif  // KVTWIN_TRACES_REPLAY_REPLAY_TABLE_H_
