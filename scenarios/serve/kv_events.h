// KvEvents publishes which blocks the prefix caches hold, as vLLM does (vllm/distributed/kv_events.py): a
// ZeroMQ PUB socket per engine; each message is [topic, sequence number (8 bytes, big-endian), payload]; the
// payload is a msgpack array [ts, events, data_parallel_rank]. Since vLLM 0.24 an event is a map:
//
//   {type: "BlockStored", block_hashes, parent_block_hash, token_ids, block_size, lora_id, medium, lora_name,
//    extra_keys, group_idx, kv_cache_spec_kind}
//   {type: "BlockRemoved", block_hashes, medium, group_idx}
//   {type: "AllBlocksCleared"}
//
// and before it was an array that begins with its name:
//
//   ["BlockStored", block_hashes, parent_block_hash, token_ids, block_size, lora_id, medium, lora_name]
//   ["BlockRemoved", block_hashes, medium]
//   ["AllBlocksCleared"]
//
// The policy does not report hashes, so the events are derived from its commands. A block is a page. It is
// stored when all its tokens are computed and the next step of its request is launched, or the request ends;
// and removed when its page is allocated again. Two requests that compute the same block at the same time
// store it once. The hash of a block covers all tokens up to its end (prompt_tokens.h).

#ifndef KVTWIN_SCENARIOS_SERVE_KV_EVENTS_H_
#define KVTWIN_SCENARIOS_SERVE_KV_EVENTS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/base/result.h"
#include "engine/runtime/driver.h"
#include "scenarios/serve/live_client.h"

namespace kvtwin::serve {

struct BlockStored {
  uint64_t hash = 0, parent = 0;  // parent 0: none
  std::vector<uint32_t> token_ids;
};

// The events of one engine at one moment: removals first.
struct KvEventBatch {
  std::vector<uint64_t> removed;
  std::vector<BlockStored> stored;  // in chain order
  bool cleared = false;
  bool empty() const { return removed.empty() && stored.empty() && !cleared; }
};

enum class KvEventLayout : uint8_t { kMaps, kArrays };

// The payload of a message. Consecutive blocks of one chain are one BlockStored.
std::string pack_batch(const KvEventBatch& batch, double unix_s, uint32_t block_tokens, uint32_t engine,
                       KvEventLayout layout);

class KvEvents final : public Observer {
 public:
  using Publish = std::function<void(EngineId, const KvEventBatch&)>;

  // Null: the policies of `config` have no blocks that events could describe.
  static bool describes(const CoreConfig& config);
  // REQUIRES: describes(configs[i]), and unit_tokens == page_tokens. `client` must outlive this.
  KvEvents(const std::vector<CoreConfig>& configs, const LiveClient& client, Publish publish);

  void saw_command(Instant now, const Command& command) override;
  // All blocks of all engines are gone: the server ends.
  void clear();

 private:
  struct Request {
    std::vector<PageId> pages;  // in order of position
    size_t stored = 0;          // of them, already seen as stored
    uint32_t computed = 0;      // tokens
  };
  struct Engine {
    uint32_t page_tokens = 0;
    std::vector<uint64_t> hash_of_page;  // 0: none
    std::unordered_map<uint64_t, PageId> page_of_hash;
    std::unordered_map<uint32_t, Request> requests;
  };

  void launched(const LaunchStep& launch, KvEventBatch* batch);
  void store(Engine* engine, RequestId id, uint32_t tokens, KvEventBatch* batch);
  static void remove(Engine* engine, PageId page, KvEventBatch* batch);

  std::vector<Engine> engines_;
  const LiveClient& client_;
  const Publish publish_;
};

// Sockets that KvEvents' batches go to. Of the simulation's thread, after bind().
class KvEventSockets {
 public:
  KvEventSockets();
  ~KvEventSockets();

  // Error: `endpoint` is none of ZeroMQ's for so many engines.
  static Result<void> check(const std::string& endpoint, size_t engines);
  // Binds one socket per engine: `endpoint`'s port is the first engine's, the next ones follow; port * takes
  // free ones. REQUIRES: check(). Errors: an endpoint that cannot be bound.
  Result<void> bind(const std::string& endpoint, const std::string& topic, size_t engines);
  const std::vector<std::string>& endpoints() const;
  void publish(EngineId engine, const std::string& payload);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kvtwin::serve

#endif  // KVTWIN_SCENARIOS_SERVE_KV_EVENTS_H_
