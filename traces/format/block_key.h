// Block ids of a prompt as runs of consecutive numbers: the decoded form of BlockKey.
//
// A WEKA prompt has 1,865 ids on average but 3.3 runs, so everything here works on runs. Ids are chained
// (docs/design/trace-formats.md#trap-7): equal ids mean equal whole prefixes, so a set of the ids seen so far
// suffices to find the longest shared prefix.

#ifndef KVTWIN_TRACES_FORMAT_BLOCK_KEY_H_
#define KVTWIN_TRACES_FORMAT_BLOCK_KEY_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/result.h"
#include "traces/proto/agent_trace.pb.h"

namespace kvtwin {

constexpr int64_t kBlockIdMax = int64_t{1} << 61;  // larger ids leave no room for arithmetic

// The ids first, first+1, ..., first+count-1, comparable within `scope`.
struct IdRun {
  int64_t first = 0;
  uint32_t count = 0;
  v1::Scope scope = v1::SCOPE_NONE;
  friend bool operator==(const IdRun&, const IdRun&) = default;
};

using IdRuns = std::vector<IdRun>;

// Appends one id; extends the last run if it continues it.
void append_id(IdRuns* runs, int64_t id, v1::Scope scope);
// Appends a whole run in the same way.
void append_run(IdRuns* runs, const IdRun& run);

uint64_t blocks_in(const IdRuns& runs);
// Number of leading ids that two keys have in common.
uint64_t common_blocks(const IdRuns& a, const IdRuns& b);

// Stores `default_scope` once; runs of another scope add the list of scopes per run.
void encode_key(const IdRuns& runs, v1::Scope default_scope, v1::BlockKey* key);
// Error.where is empty, because only the caller knows the request.
Result<IdRuns> decode_key(const v1::BlockKey& key);

// Appends every id as text, at most kIdsListedMax: a run of a few bytes may stand for gigabytes.
constexpr uint64_t kIdsListedMax = 4u << 20;
Result<void> list_ids(const IdRuns& runs, std::string_view separator, std::string* out);

// A set of ids as disjoint intervals: counts distinct blocks without visiting every id.
class IdSet {
 public:
  // Returns how many of the run's ids were not in the set.
  uint64_t insert(int64_t first, uint32_t count);
  uint64_t size() const { return size_; }

 private:
  std::map<int64_t, int64_t> end_of_;  // first id of an interval -> one past its last id
  uint64_t size_ = 0;
};

}  // namespace kvtwin

#endif  // KVTWIN_TRACES_FORMAT_BLOCK_KEY_H_
