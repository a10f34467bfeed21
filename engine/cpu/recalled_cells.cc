#include "engine/cpu/recalled_cells.h"

#include <algorithm>
#include <utility>

#include "engine/base/check.h"

namespace kvtwin::cpu {
namespace {

void gather(const std::vector<uint32_t>& rows, uint64_t width, const float* from, std::vector<float>* to) {
  to->resize(rows.size() * width);
  for (size_t i = 0; i < rows.size(); ++i) std::copy_n(from + rows[i] * width, width, to->data() + i * width);
}

}  // namespace

RecalledCells::RecalledCells(const LlmSpec& llm, std::unique_ptr<CompressedCache> prompts,
                             std::unique_ptr<KvCache> arenas, const KvMemory& memory)
    : llm_(llm), pages_gpu_(memory.pages_gpu), prompts_(std::move(prompts)), arenas_(std::move(arenas)) {}

Result<std::unique_ptr<KvCache>> RecalledCells::make(const CompressedConfig& config, const KvMemory& memory,
                                                     const ModelWeights* weights,
                                                     const RetrievedOptions& options) {
  KVT_CHECK(config.core.policies.layout == "compact" && config.core.policies.placement == "arena");
  CompressedConfig dense = config;  // prompts read everything, and are on the gpu
  dense.core.policies.retrieval = "all";
  dense.core.policies.placement = "gpu";
  dense.core.pages_host = 0;
  const KvMemory gpu{memory.page_tokens, memory.pages_gpu, 0, memory.poison};
  Result<std::unique_ptr<CompressedCache>> prompts = CompressedCache::make(dense, gpu, weights);
  if (!prompts) return tl::unexpected<Mistake>(prompts.error());
  Result<std::unique_ptr<KvCache>> arenas = RetrievedCache::make(memory, weights, options);
  if (!arenas) return tl::unexpected<Mistake>(arenas.error());
  return std::unique_ptr<KvCache>(
      new RecalledCells(weights->llm(), std::move(*prompts), std::move(*arenas), memory));
}

// Entries, grants and compressions of the step by who computes them.
void RecalledCells::split(const LaunchStep& launch, uint32_t offset, std::span<const PlanEntry> entries) {
  endings_.clear();
  for (Part& part : parts_) part = {};
  std::vector<std::pair<uint32_t, uint32_t>> place;  // of each entry: part, and where in it
  uint32_t row = 0;
  for (size_t i = 0; i < entries.size(); ++i) {
    const PlanEntry& entry = entries[i];
    if (offset == 0 && entry.first) calls_[entry.call] = {};
    const uint32_t of = calls_[entry.call].in_arena ? 1 : 0;
    Part& part = parts_[of];
    place.emplace_back(of, static_cast<uint32_t>(part.entries.size()));
    part.launched.push_back(launch.entries[i]);
    part.entries.push_back(entry);
    for (uint32_t t = 0; t < entry.tokens; ++t) part.rows.push_back(row++);
    if (of == 0 && entry.samples) {
      const auto last = static_cast<uint32_t>(part.rows.size()) - 1;
      endings_.push_back({entry.call, entry.context + entry.tokens, last, {}});
    }
  }
  for (PageGrant grant : launch.grants) {
    if (grant.offset != offset) continue;
    const auto [of, at] = place[grant.entry];
    const bool on_host = raw(grant.page) >= pages_gpu_;
    if (of == 0) {
      Call& call = calls_[launch.entries[grant.entry].call];
      (on_host ? call.homes : call.gpu).push_back(grant.page);
    }
    grant.entry = at;
    if (of == 1 || !on_host) parts_[of].grants.push_back(grant);
  }
  for (Compression compression : launch.compressions) {
    const auto [of, at] = place[compression.entry];
    KVT_CHECK(of == 0);
    compression.entry = at;
    parts_[0].compressions.push_back(compression);
  }
}

void RecalledCells::begin(const LaunchStep& launch, uint32_t offset, std::span<const PlanEntry> entries) {
  KVT_CHECK(launch.adoptions.empty());
  split(launch, offset, entries);
  for (Part& part : parts_) {
    part.launch = launch;
    part.launch.entries = part.launched;
    part.launch.grants = part.grants;
    part.launch.compressions = part.compressions;
  }
  prompts_->begin(parts_[0].launch, offset, parts_[0].entries);
  arenas_->begin(parts_[1].launch, offset, parts_[1].entries);
}

void RecalledCells::hidden(uint32_t layer, const float* x) {
  Part& part = parts_[0];  // pages are chosen with queries alone
  if (part.rows.empty()) return;
  gather(part.rows, llm_.hidden, x, &part.x);
  prompts_->hidden(layer, part.x.data());
}

void RecalledCells::attend(uint32_t layer, float* q, float* k, const float* v, float* out) {
  KvCache* const caches[] = {prompts_.get(), arenas_.get()};
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
  for (Ending& ending : endings_) {
    const float* const row = parts_[0].q.data() + ending.row * q_width();
    ending.queries.emplace_back(row, row + q_width());
  }
}

void RecalledCells::end(const LaunchStep&, uint32_t offset, std::span<const PlanEntry>, StepValues* values) {
  prompts_->end(parts_[0].launch, offset, parts_[0].entries, values);
  for (const Ending& ending : endings_) hand_over(ending);
  arenas_->end(parts_[1].launch, offset, parts_[1].entries, values);
}

void RecalledCells::hand_over(const Ending& ending) {
  Call& call = calls_.at(ending.call);
  const CallCells& cells = prompts_->cells(ending.call);
  const CellStore& store = prompts_->store();
  RetrievedCache::KeptPrompt kept{
      ending.call, ending.tokens, cells.cells(0), call.gpu, call.homes, ending.queries, {}};
  for (uint32_t head = 0; head < llm_.layers * llm_.kv_heads; ++head)
    KVT_CHECK(cells.cells(head) == kept.cells);
  kept.copy = [&](uint32_t layer, uint32_t head, uint32_t cell, float* key, float* value) {
    const uint32_t column = layer * llm_.kv_heads + head;
    const Place place = cells.place(store.shape().groups.group_of(column), cell);
    std::copy_n(store.key(column, place), llm_.head_dim, key);
    std::copy_n(store.value(column, place), llm_.head_dim, value);
  };
  static_cast<RetrievedCache&>(*arenas_).take_over(kept);
  call = {.in_arena = true, .gpu = {}, .homes = {}};
  prompts_->told(DropCallState{{}, ending.call, DropCallState::Reason::kFinished});
}

void RecalledCells::told(const Command& command) {
  prompts_->told(command);
  arenas_->told(command);
  const auto* drop = std::get_if<DropCallState>(&command);
  // A preempted call may still be in a step that was launched before.
  if (drop != nullptr && drop->reason != DropCallState::Reason::kPreempted) calls_.erase(drop->call);
}

}  // namespace kvtwin::cpu
