#include "scenarios/serve/kv_events.h"

#include <fmt/format.h>
#include <msgpack.h>
#include <zmq.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>
#include <utility>

#include "engine/base/plural.h"
#include "engine/methods/traits.h"

namespace kvtwin::serve {
namespace {

constexpr int kWaitingMessages = 100'000;  // per subscriber; vLLM's hwm

class Packer {
 public:
  Packer() { msgpack_packer_init(&packer_, &buffer_, append); }
  void array(size_t size) { msgpack_pack_array(&packer_, size); }
  void map(size_t size) { msgpack_pack_map(&packer_, size); }
  void number(uint64_t value) { msgpack_pack_uint64(&packer_, value); }
  void real(double value) { msgpack_pack_double(&packer_, value); }
  void nil() { msgpack_pack_nil(&packer_); }
  void text(std::string_view value) {
    msgpack_pack_str(&packer_, value.size());
    msgpack_pack_str_body(&packer_, value.data(), value.size());
  }
  std::string take() { return std::move(buffer_); }

 private:
  static int append(void* buffer, const char* bytes, size_t count) {
    static_cast<std::string*>(buffer)->append(bytes, count);
    return 0;
  }
  std::string buffer_;
  msgpack_packer packer_;
};

// Writes the fields of one event, as a map or as an array.
class EventPacker {
 public:
  // `fields` of the map besides its type; `places` of the array after its name.
  EventPacker(Packer* out, KvEventLayout layout, const char* name, size_t fields, size_t places)
      : out_(*out), maps_(layout == KvEventLayout::kMaps) {
    if (maps_) {
      out_.map(fields + 1);
      out_.text("type");
    } else {
      out_.array(places + 1);
    }
    out_.text(name);
  }
  Packer& field(const char* name) {
    if (maps_) out_.text(name);
    return out_;
  }

 private:
  Packer& out_;
  const bool maps_;
};

// The model has one group of layers with one kind of attention: vLLM's group 0.
constexpr uint64_t kGroup = 0;

void pack_stored(const std::vector<BlockStored>& stored, size_t begin, size_t end, uint32_t block_tokens,
                 KvEventLayout layout, Packer* out) {
  EventPacker event(out, layout, "BlockStored", 10, 7);
  event.field("block_hashes").array(end - begin);
  for (size_t i = begin; i < end; ++i) out->number(stored[i].hash);
  event.field("parent_block_hash");
  stored[begin].parent == 0 ? out->nil() : out->number(stored[begin].parent);
  event.field("token_ids").array((end - begin) * block_tokens);
  for (size_t i = begin; i < end; ++i) {
    for (const uint32_t id : stored[i].token_ids) out->number(id);
  }
  event.field("block_size").number(block_tokens);
  event.field("lora_id").nil();
  event.field("medium").text("GPU");
  event.field("lora_name").nil();
  if (layout == KvEventLayout::kArrays) return;
  event.field("extra_keys").array(end - begin);  // of multimodal content, adapters and salts: none
  for (size_t i = begin; i < end; ++i) out->nil();
  event.field("group_idx").number(kGroup);
  event.field("kv_cache_spec_kind").text("full_attention");
}

void pack_removed(const std::vector<uint64_t>& hashes, KvEventLayout layout, Packer* out) {
  EventPacker event(out, layout, "BlockRemoved", 3, 2);
  event.field("block_hashes").array(hashes.size());
  for (const uint64_t hash : hashes) out->number(hash);
  event.field("medium").text("GPU");
  if (layout == KvEventLayout::kMaps) event.field("group_idx").number(kGroup);
}

constexpr std::string_view kTcp = "tcp://";

// The port at the end of an endpoint: a number, or * for any; number 0: neither.
struct PortText {
  explicit PortText(const std::string& endpoint) : colon(endpoint.rfind(':')) {
    const std::string text = colon == std::string::npos ? "" : endpoint.substr(colon + 1);
    any = text == "*";
    const auto parsed = std::from_chars(text.data(), text.data() + text.size(), number);
    if (parsed.ec != std::errc() || parsed.ptr != text.data() + text.size()) number = 0;
  }
  size_t colon;
  bool any = false;
  uint32_t number = 0;
};

// Ends of the chains in `stored`: [0, ends[0]), [ends[0], ends[1]), ...
std::vector<size_t> chain_ends(const std::vector<BlockStored>& stored) {
  std::vector<size_t> ends;
  for (size_t i = 1; i <= stored.size(); ++i) {
    if (i == stored.size() || stored[i].parent != stored[i - 1].hash) ends.push_back(i);
  }
  return ends;
}

}  // namespace

std::string pack_batch(const KvEventBatch& batch, double unix_s, uint32_t block_tokens, uint32_t engine,
                       KvEventLayout layout) {
  const std::vector<size_t> ends = chain_ends(batch.stored);
  Packer out;
  out.array(3);
  out.real(unix_s);
  out.array((batch.removed.empty() ? 0 : 1) + ends.size() + (batch.cleared ? 1 : 0));
  if (!batch.removed.empty()) pack_removed(batch.removed, layout, &out);
  size_t begin = 0;
  for (const size_t end : ends) {
    pack_stored(batch.stored, begin, end, block_tokens, layout, &out);
    begin = end;
  }
  if (batch.cleared) EventPacker(&out, layout, "AllBlocksCleared", 0, 0);
  out.number(engine);
  return out.take();
}

bool KvEvents::describes(const CoreConfig& config) {
  const PolicySet& set = config.policies;
  return config.prefix_cache && layout_traits(set.layout).slot_retention == SlotRetention::kAll &&
         budget_traits(set.budget).keeps_all && !placement_traits(set.placement).uses_host &&
         config.pages_int2 == 0 && config.unit_tokens == config.page_tokens;
}

KvEvents::KvEvents(const std::vector<CoreConfig>& configs, const LiveClient& client, Publish publish)
    : client_(client), publish_(std::move(publish)) {
  for (const CoreConfig& config : configs) {
    Engine& engine = engines_.emplace_back();
    engine.page_tokens = config.page_tokens;
    engine.hash_of_page.resize(config.pages_gpu);
  }
}

void KvEvents::remove(Engine* engine, PageId page, KvEventBatch* batch) {
  if (raw(page) >= engine->hash_of_page.size()) return;  // of another tier
  const uint64_t hash = std::exchange(engine->hash_of_page[raw(page)], 0);
  if (hash == 0) return;
  engine->page_of_hash.erase(hash);
  batch->removed.push_back(hash);
}

// The first `tokens` tokens of the request are computed.
void KvEvents::store(Engine* engine, RequestId id, uint32_t tokens, KvEventBatch* batch) {
  Request& request = engine->requests[raw(id)];
  request.computed = std::max(request.computed, tokens);
  const LiveRequest* const live = client_.find(id);
  if (live == nullptr) return;
  const size_t full =
      std::min({size_t{tokens} / engine->page_tokens, request.pages.size(), live->identity.size()});
  for (; request.stored < full; ++request.stored) {
    const size_t i = request.stored;
    const uint64_t hash = live->identity[i].space;
    const PageId page = request.pages[i];
    if (raw(page) >= engine->hash_of_page.size() || engine->page_of_hash.contains(hash)) continue;
    remove(engine, page, batch);
    engine->page_of_hash.emplace(hash, page);
    engine->hash_of_page[raw(page)] = hash;
    BlockStored& block = batch->stored.emplace_back();
    block.hash = hash;
    block.parent = i == 0 ? 0 : live->identity[i - 1].space;
    const uint32_t prompt = live->prompt.count();
    for (uint32_t at = static_cast<uint32_t>(i) * engine->page_tokens;
         block.token_ids.size() < engine->page_tokens; ++at)
      block.token_ids.push_back(
          event_id(at < prompt ? live->prompt.tokens()[at] : generated_token_value(live->seed, at - prompt)));
  }
}

void KvEvents::launched(const LaunchStep& launch, KvEventBatch* batch) {
  Engine& engine = engines_[raw(launch.engine)];
  for (const PrefixHit& hit : launch.prefix_hits) {
    Request& request = engine.requests[raw(hit.request)];
    request = {};
    request.pages.assign(hit.pages.begin(), hit.pages.end());
  }
  for (const PageAllocation& allocation : launch.allocations) {
    remove(&engine, allocation.page, batch);
    engine.requests[raw(launch.entries[allocation.entry].request)].pages.push_back(allocation.page);
  }
  for (const PlanEntry& entry : launch.entries) {
    store(&engine, entry.request, entry.context, batch);
    Request& request = engine.requests[raw(entry.request)];
    request.computed = std::max(request.computed, entry.context + entry.stored() * launch.repeat);
  }
}

void KvEvents::saw_command(Instant, const Command& command) {
  KvEventBatch batch;
  EngineId engine{};
  if (const auto* const launch = std::get_if<LaunchStep>(&command)) {
    engine = launch->engine;
    launched(*launch, &batch);
  } else if (const auto* const transfer = std::get_if<StartTransfer>(&command)) {
    engine = transfer->engine;
    if (transfer->target_tier == Tier::kGpu) {
      for (const PageId page : transfer->target) remove(&engines_[raw(engine)], page, &batch);
    }
  } else if (const auto* const drop = std::get_if<DropRequestState>(&command)) {
    engine = drop->engine;
    Engine& of = engines_[raw(engine)];
    const auto found = of.requests.find(raw(drop->request));
    if (found != of.requests.end()) {
      store(&of, drop->request, found->second.computed, &batch);
      of.requests.erase(raw(drop->request));
    }
  }
  if (!batch.empty()) publish_(engine, batch);
}

void KvEvents::clear() {
  for (size_t i = 0; i < engines_.size(); ++i)
    publish_(EngineId{static_cast<uint16_t>(i)}, KvEventBatch{.removed = {}, .stored = {}, .cleared = true});
}

struct KvEventSockets::State {
  void* context = nullptr;
  std::vector<void*> sockets;
  std::vector<std::string> endpoints;
  std::vector<uint64_t> sent;  // messages, per engine
  std::string topic;
};

KvEventSockets::KvEventSockets() : state_(std::make_unique<State>()) {}

KvEventSockets::~KvEventSockets() {
  for (void* const socket : state_->sockets) zmq_close(socket);
  if (state_->context != nullptr) zmq_ctx_term(state_->context);
}

const std::vector<std::string>& KvEventSockets::endpoints() const { return state_->endpoints; }

Result<void> KvEventSockets::check(const std::string& endpoint, size_t engines) {
  const PortText port(endpoint);
  const bool host = port.colon != std::string::npos && port.colon > kTcp.size();
  if (endpoint.starts_with(kTcp) && host && (port.any || (port.number > 0 && port.number + engines <= 65536)))
    return {};
  return make_error("--kv-events=" + endpoint,
                    fmt::format("is not an endpoint for {} {}", engines, plural(engines, "engine")),
                    "tcp://127.0.0.1:5557; port * takes free ones");
}

Result<void> KvEventSockets::bind(const std::string& endpoint, const std::string& topic, size_t engines) {
  const std::string where = "--kv-events=" + endpoint;
  const PortText port(endpoint);
  state_->topic = topic;
  state_->context = zmq_ctx_new();
  for (size_t i = 0; i < engines; ++i) {
    void* const socket = zmq_socket(state_->context, ZMQ_PUB);
    state_->sockets.push_back(socket);
    const int linger = 200;  // milliseconds at the end, for the last messages
    zmq_setsockopt(socket, ZMQ_SNDHWM, &kWaitingMessages, sizeof kWaitingMessages);
    zmq_setsockopt(socket, ZMQ_LINGER, &linger, sizeof linger);
    const std::string own =
        port.any ? endpoint : endpoint.substr(0, port.colon + 1) + std::to_string(port.number + i);
    if (zmq_bind(socket, own.c_str()) != 0)
      return make_error(where, fmt::format("cannot bind {}: {}", own, zmq_strerror(zmq_errno())));
    std::array<char, 256> bound{};
    size_t size = bound.size();
    zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, bound.data(), &size);
    state_->endpoints.emplace_back(bound.data());
  }
  state_->sent.resize(engines);
  return {};
}

void KvEventSockets::publish(EngineId engine, const std::string& payload) {
  void* const socket = state_->sockets[raw(engine)];
  const uint64_t sequence = state_->sent[raw(engine)]++;
  std::array<char, 8> bytes{};
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(sequence >> (56 - 8 * i) & 0xff);
  zmq_send(socket, state_->topic.data(), state_->topic.size(), ZMQ_SNDMORE | ZMQ_DONTWAIT);
  zmq_send(socket, bytes.data(), bytes.size(), ZMQ_SNDMORE | ZMQ_DONTWAIT);
  zmq_send(socket, payload.data(), payload.size(), ZMQ_DONTWAIT);
}

}  // namespace kvtwin::serve
