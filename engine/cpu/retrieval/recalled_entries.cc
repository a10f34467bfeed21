#include "engine/cpu/retrieval/recalled_entries.h"

#include <algorithm>
#include <utility>

#include "engine/base/check.h"
#include "engine/methods/traits.h"

namespace kvtwin::cpu {
namespace {

void gather(const std::vector<uint32_t>& rows, uint64_t width, const float* from, std::vector<float>* to) {
  to->resize(rows.size() * width);
  for (size_t i = 0; i < rows.size(); ++i) std::copy_n(from + rows[i] * width, width, to->data() + i * width);
}

}  // namespace

RecalledEntries::RecalledEntries(const LlmSpec& llm, std::unique_ptr<CompressedCache> prompts,
                                 std::unique_ptr<KvCache> resident_caches, const KvMemory& memory)
    : llm_(llm),
      pages_gpu_(memory.pages_gpu),
      prompts_(std::move(prompts)),
      residents_(std::move(resident_caches)) {}

Result<std::unique_ptr<KvCache>> RecalledEntries::make(const CompressedConfig& config, const KvMemory& memory,
                                                       const ModelWeights* weights,
                                                       const RetrievedOptions& options) {
  KVT_CHECK(placement_traits(config.core.policies.placement).uses_resident);
  CompressedConfig dense = config;  // prompts read everything and are on the GPU
  dense.core.policies.retrieval = PolicySet().retrieval;
  dense.core.policies.placement = PolicySet().placement;
  dense.core.pages_host = 0;
  const KvMemory gpu{memory.page_tokens, memory.pages_gpu, 0, memory.poison};
  Result<std::unique_ptr<CompressedCache>> prompts = CompressedCache::make(dense, gpu, weights);
  if (!prompts) return tl::unexpected<Error>(prompts.error());
  Result<std::unique_ptr<KvCache>> resident_caches = RetrievedCache::make(memory, weights, options);
  if (!resident_caches) return tl::unexpected<Error>(resident_caches.error());
  return std::unique_ptr<KvCache>(
      new RecalledEntries(weights->llm(), std::move(*prompts), std::move(*resident_caches), memory));
}

// Divides entries, allocations and compressions of the step between the two caches.
void RecalledEntries::split(const LaunchStep& launch, uint32_t offset, std::span<const PlanEntry> entries) {
  last_rows_.clear();
  endings_.clear();
  for (Part& part : parts_) part = {};
  std::vector<std::pair<uint32_t, uint32_t>> place;  // of each entry: its part, and its index in it
  uint32_t row = 0;
  for (size_t i = 0; i < entries.size(); ++i) {
    const PlanEntry& entry = entries[i];
    if (offset == 0 && entry.first) requests_[entry.request] = {};
    const uint32_t of = requests_[entry.request].in_resident ? 1 : 0;
    Part& part = parts_[of];
    place.emplace_back(of, static_cast<uint32_t>(part.entries.size()));
    part.launched.push_back(launch.entries[i]);
    part.entries.push_back(entry);
    for (uint32_t t = 0; t < entry.stored(); ++t) part.rows.push_back(row++);
    if (of == 1) continue;
    if (entry.samples)
      last_rows_.push_back({&requests_[entry.request], static_cast<uint32_t>(part.rows.size()) - 1});
    if ((entry.samples || entry.kind == EntryKind::kProbe) && entry.passes_left == 0)
      endings_.push_back({entry.request, entry.context + entry.stored()});
  }
  for (PageAllocation allocation : launch.allocations) {
    if (allocation.offset != offset) continue;
    const auto [of, at] = place[allocation.entry];
    const bool on_host = raw(allocation.page) >= pages_gpu_;
    if (of == 0) {
      Request& request = requests_[launch.entries[allocation.entry].request];
      (on_host ? request.host_copies : request.gpu).push_back(allocation.page);
    }
    allocation.entry = at;
    if (of == 1 || !on_host) parts_[of].allocations.push_back(allocation);
  }
  for (Compression compression : launch.compressions) {
    const auto [of, at] = place[compression.entry];
    KVT_CHECK(of == 0);
    compression.entry = at;
    parts_[0].compressions.push_back(compression);
  }
  for (ProbePass pass : launch.passes) {
    pass.entry = place[pass.entry].second;
    parts_[0].passes.push_back(pass);
  }
}

void RecalledEntries::begin(const LaunchStep& launch, uint32_t offset, std::span<const PlanEntry> entries) {
  KVT_CHECK(launch.prefix_hits.empty());
  split(launch, offset, entries);
  for (Part& part : parts_) {
    part.launch = launch;
    part.launch.entries = part.launched;
    part.launch.allocations = part.allocations;
    part.launch.compressions = part.compressions;
    part.launch.passes = part.passes;
  }
  prompts_->begin(parts_[0].launch, offset, parts_[0].entries);
  residents_->begin(parts_[1].launch, offset, parts_[1].entries);
}

void RecalledEntries::hidden(uint32_t layer, const float* x) {
  Part& part = parts_[0];  // the retrieval methods here select pages by queries, not by hidden rows
  if (part.rows.empty()) return;
  gather(part.rows, llm_.hidden, x, &part.x);
  prompts_->hidden(layer, part.x.data());
}

void RecalledEntries::attend(uint32_t layer, float* q, float* k, const float* v, float* out) {
  KvCache* const caches[] = {prompts_.get(), residents_.get()};
  for (size_t of = 0; of < 2; ++of) {
    Part& part = parts_[of];
    if (part.rows.empty()) continue;
    gather(part.rows, q_width(), q, &part.q);
    gather(part.rows, kv_width(), k, &part.k);
    gather(part.rows, kv_width(), v, &part.v);
    part.out.assign(part.q.size(), 0);
    caches[of]->attend(layer, part.q.data(), part.k.data(), part.v.data(), part.out.data());
    for (size_t i = 0; i < part.rows.size(); ++i)
      std::copy_n(part.out.data() + i * q_width(), q_width(), out + part.rows[i] * q_width());
  }
  for (const LastRow& last : last_rows_) {
    const float* const row = parts_[0].q.data() + last.row * q_width();
    last.request->queries.emplace_back(row, row + q_width());
  }
}

void RecalledEntries::end(const LaunchStep&, uint32_t offset, std::span<const PlanEntry>,
                          DataOutcomes* values) {
  prompts_->end(parts_[0].launch, offset, parts_[0].entries, values);
  for (const Ending& ending : endings_) hand_over(ending);
  residents_->end(parts_[1].launch, offset, parts_[1].entries, values);
}

void RecalledEntries::hand_over(const Ending& ending) {
  Request& request = requests_.at(ending.request);
  const RequestTable& kv_entries = prompts_->kv_entries(ending.request);
  const KvEntryStore& store = prompts_->store();
  RetrievedCache::RetainedPrompt retained{ending.request,
                                          ending.tokens,
                                          kv_entries.kv_entries(0),
                                          request.gpu,
                                          request.host_copies,
                                          request.queries,
                                          {}};
  for (uint32_t head = 0; head < llm_.layers * llm_.kv_heads; ++head)
    KVT_CHECK(kv_entries.kv_entries(head) == retained.kv_entries);
  retained.copy = [&](uint32_t layer, uint32_t head, uint32_t kv_entry, float* key, float* value) {
    const uint32_t column = layer * llm_.kv_heads + head;
    const Place place = kv_entries.place(store.shape().groups.group_of(column), kv_entry);
    std::copy_n(store.key(column, place), llm_.head_dim, key);
    std::copy_n(store.value(column, place), llm_.head_dim, value);
  };
  static_cast<RetrievedCache&>(*residents_).take_over(retained);
  request = {.in_resident = true, .gpu = {}, .host_copies = {}, .queries = {}};
  prompts_->notify(DropRequestState{{}, ending.request, DropRequestState::Reason::kFinished});
}

void RecalledEntries::notify(const Command& command) {
  prompts_->notify(command);
  residents_->notify(command);
  const auto* drop = std::get_if<DropRequestState>(&command);
  // A preempted request may still be part of a launched step.
  if (drop != nullptr && drop->reason != DropRequestState::Reason::kPreempted) requests_.erase(drop->request);
}

}  // namespace kvtwin::cpu
