// GroupedRequest is the KV of one request whose pages belong to head groups.

#ifndef KVTWIN_ENGINE_KV_MANAGERS_GROUPED_REQUEST_H_
#define KVTWIN_ENGINE_KV_MANAGERS_GROUPED_REQUEST_H_

#include "engine/kv/group_tables.h"
#include "engine/kv/managers/chunk_checkpoints.h"
#include "engine/kv/managers/compressions.h"
#include "engine/kv/managers/request_transfers.h"

namespace kvtwin {

struct GroupedRequest : TransferState {
  ChunkCheckpoints::State shared;
  GroupTables tables;
  CompressionState compression;
  bool holds = false;       // it runs
  bool swapped_in = false;  // its next entry lists its pages
  bool unlaunched = false;  // its planned entry copies pages of a prefix checkpoint

  // Its prompt, as it was known at admission, is not computed yet.
  bool fills(uint32_t computed) const { return computed < compression.fill; }
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_KV_MANAGERS_GROUPED_REQUEST_H_
