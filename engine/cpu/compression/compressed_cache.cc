#include "engine/cpu/compression/compressed_cache.h"

#include <algorithm>

#include "engine/base/check.h"
#include "engine/methods/budget_groups.h"
#include "engine/methods/combinations.h"
#include "engine/methods/registry.h"
#include "engine/methods/retention.h"
#include "engine/methods/traits.h"

namespace kvtwin::cpu {
namespace {

KvEntryFormat format_of(const PolicySet& set) {
  const Format format = precision_traits(set.precision).prompt_format;
  return {format, set.precision_spec.group, !retrieval_traits(set.retrieval).reads_everything()};
}

}  // namespace

RequestTableShape table_shape(const CoreConfig& config) {
  const PolicyAxes axes = make_axes(config.policies);
  const Retention retention(config, axes);
  RequestTableShape out;
  out.groups = make_groups(config.policies);
  out.tables = retention.shape();
  out.slot_retention = retention.slot_retention();
  if (out.slot_retention == SlotRetention::kAll)
    out.slot_retention = SlotRetention::kInPlace;  // and none is dropped
  out.sinks = retention.sinks();
  out.rerotate = !axes.layout.keeps_phase;
  return out;
}

CompressedCache::CompressedCache(const CompressedConfig& config, const KvMemory& memory,
                                 const ModelWeights* weights)
    : config_(config),
      memory_(memory),
      llm_(weights->llm()),
      rope_(rope_frequencies(weights->llm())),
      retrieval_(config.core.policies.retrieval_spec),
      chooses_(!retrieval_traits(config.core.policies.retrieval).reads_everything()),
      shape_(table_shape(config.core)),
      shared_(&shape_, memory.page_tokens) {}

Result<std::unique_ptr<CompressedCache>> CompressedCache::make(const CompressedConfig& config,
                                                               const KvMemory& memory,
                                                               const ModelWeights* weights) {
  std::unique_ptr<CompressedCache> out(new CompressedCache(config, memory, weights));
  const LlmSpec& llm = weights->llm();
  KVT_CHECK(!check_compressed(config.core, llm).has_value());
  const PolicySet& set = config.core.policies;
  out->weights_ = config.weights.has_value()
                      ? *config.weights
                      : ScorerWeights::drawn(*config.score.scorer, llm,
                                             captured_queries(set.scorer, set.scorer_spec), config.seed);
  const uint32_t rows = std::max(config.core.step_tokens_max, probe_passes(set).tokens_max());
  Result<KvEntryStore> store =
      KvEntryStore::make(memory, llm, &out->shape_, rows, format_of(config.core.policies));
  if (!store) return tl::unexpected<Error>(store.error());
  out->store_ = std::make_unique<KvEntryStore>(std::move(*store));
  ScorerConfig scorer;
  scorer.spec = config.score;
  scorer.compression_trigger = make_axes(config.core.policies).scorer->compression_trigger();
  out->scorer_ = std::make_unique<KvEntryScorer>(scorer, weights, &out->weights_, out->store_.get());
  if (out->scorer_->scores_tokens())
    out->intents_ = std::make_unique<IntentMemory>(config.score, &out->llm_, &out->rope_, &out->weights_);
  out->budget_ =
      std::make_unique<KvEntryBudget>(config.core.policies, memory.page_tokens, &out->shape_.groups);
  return out;
}

CompressedCache::Request& CompressedCache::request_of(RequestId id) {
  const auto known = requests_.find(id);
  if (known != requests_.end()) return known->second;
  Request& made = requests_.emplace(id, Request{RequestTable(&shape_), {}, {}}).first->second;
  made.summaries.resize(size_t{llm_.layers} * llm_.kv_heads);
  scorer_->begin(&made.captured);
  return made;
}

void CompressedCache::begin(const LaunchStep& launch, uint32_t offset, std::span<const PlanEntry> entries) {
  take_pages(launch, offset);
  work_.clear();
  recalls_.assign(chooses_ ? llm_.layers : 0, {});
  rows_ = 0;
  for (const PlanEntry& entry : entries) {
    Work& work = work_.emplace_back();
    work.request = &request_of(entry.request);
    work.rows = {.request = entry.request,
                 .row = rows_,
                 .tokens = entry.stored(),
                 .context = entry.context,
                 .phase = work.request->kv_entries.next_phase(),
                 .prompt = entry.kind != EntryKind::kDecode,
                 .samples = entry.samples,
                 .query = entry.query};
    rows_ += entry.stored();
  }
  KVT_CHECK(rows_ <= std::max(config_.core.step_tokens_max, 1u));
  for (const ProbePass& pass : launch.passes) work_.at(pass.entry).pass = &pass;
  for (const Compression& compression : launch.compressions) {
    Work& work = work_.at(compression.entry);
    work.compression = &compression;
    work.rows.staged = compression.staged;
  }
  for (Work& work : work_) {
    RequestTable& kv_entries = work.request->kv_entries;
    KVT_CHECK(kv_entries.tokens() == work.rows.context);
    scorer_->begin_rows(work.rows, &work.request->captured);
    if (work.compression != nullptr && work.compression->before) {
      std::vector<RankedHead> heads = rank_all(work);
      compress_in_place(work, &heads, &work.live);
    }
    kv_entries.add(work.rows.tokens, !work.rows.staged);
    work.own_exact = work.rows.staged || (store_->packed() && work.rows.prompt);
    if (shape_.slot_retention == SlotRetention::kInPlace)
      kv_entries.reads(0, kv_entries.kv_entries(0) - (work.own_exact ? work.rows.tokens : 0), &work.reads);
  }
}

void CompressedCache::take_pages(const LaunchStep& launch, uint32_t offset) {
  if (offset == 0) {
    for (const PlanEntry& entry : launch.entries) {
      if (!entry.first || entry.swapped_in) continue;
      Request& request = request_of(entry.request);
      request.kv_entries.clear();
      scorer_->begin(&request.captured);
      for (std::vector<float>& of_head : request.summaries) of_head.clear();
    }
    for (const PrefixHit& prefix_hit : launch.prefix_hits)
      shared_.begin(launch, prefix_hit, &request_of(prefix_hit.request).kv_entries);
  }
  for (const PageAllocation& allocation : launch.allocations) {
    if (allocation.offset != offset) continue;
    KVT_CHECK(raw(allocation.page) < memory_.pages_gpu);
    if (memory_.poison) store_->poison(allocation.page);
    const RequestId request = launch.entries[allocation.entry].request;
    request_of(request).kv_entries.allocate(allocation.group, allocation.page);
    // The request writes to copies only. Scorers that may share a prefix use one chunk at a time, so no
    // further state is inherited (KvEntryScorer::begin_rows).
    if (const auto source = shared_.allocated(request, allocation.group, allocation.page))
      store_->copy(*source, allocation.page);
  }
  shared_.check_copied();
}

void CompressedCache::end(const LaunchStep& launch, uint32_t, std::span<const PlanEntry>,
                          DataOutcomes* values) {
  values->recalls = recalls_;
  values->retained.reserve(launch.compressions.size());
  for (const Work& work : work_) {
    if (intents_ != nullptr) remember(work);
    if (work.pass != nullptr) run_pass(work);
    if (work.compression == nullptr) continue;
    if (work.compression->before) {
      values->retained_live.insert(values->retained_live.end(), work.live.begin(), work.live.end());
    } else if (!work.rows.staged) {
      compress(work, values);
    }
    if (shape_.slot_retention == SlotRetention::kMove) work.request->kv_entries.trim();
    if (memory_.poison) work.request->kv_entries.check();
    values->end_retained(work.rows.request);
  }
  for (const PrefixCheckpoint& prefix_checkpoint : launch.prefix_checkpoints) {
    shared_.take(prefix_checkpoint.prefix_checkpoint, work_.at(prefix_checkpoint.entry).request->kv_entries);
  }
  values->link_retained();
}

void CompressedCache::notify(const Command& command) {
  if (const auto* transfer = std::get_if<StartTransfer>(&command)) {
    for (size_t i = 0; i < transfer->source.size(); ++i) {
      store_->copy(transfer->source[i], transfer->target[i]);
      shared_.copied(transfer->source[i], transfer->target[i]);
    }
  }
  // A preempted request may still be part of a launched step; when it is readmitted, it starts again.
  const auto* drop = std::get_if<DropRequestState>(&command);
  if (drop != nullptr && drop->reason != DropRequestState::Reason::kPreempted) {
    requests_.erase(drop->request);
    remembered_.erase(drop->request);
  }
  const auto* session = std::get_if<DropSessionState>(&command);
  if (session != nullptr && intents_ != nullptr) intents_->forget(session->session);
}

std::optional<std::string> check_compressed(const CoreConfig& config, const LlmSpec& llm) {
  const PolicySet& set = config.policies;
  if (auto problem = cannot_combine(config, Computes::kCpu)) return problem;
  if (set.layout_spec.kv_heads != llm.kv_heads) {
    return "tensor parallelism copies KV heads (" + std::to_string(set.layout_spec.kv_heads) + " for " +
           std::to_string(llm.kv_heads) +
           "), which the CPU engine does not; set tensor_parallel to at most " + std::to_string(llm.kv_heads);
  }
  return std::nullopt;
}

}  // namespace kvtwin::cpu
