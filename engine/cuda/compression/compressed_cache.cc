#include "engine/cuda/compression/compressed_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <tuple>

#include "engine/base/check.h"
#include "engine/cuda/cuda_forward.h"
#include "engine/cuda/device/cuda_check.h"
#include "engine/methods/budget_groups.h"
#include "engine/methods/registry.h"
#include "engine/methods/retention.h"
#include "kernels/attention/attention_rows.h"
#include "models/catalog/rope.h"

namespace kvtwin::cuda {

CompressedCache::CompressedCache(const CompressedOptions& options, const KvMemory& memory,
                                 const ModelWeights* weights)
    : options_(options),
      memory_(memory),
      llm_(weights->llm()),
      shape_(cpu::table_shape(options.config.core)),
      model_(weights),
      shared_(&shape_, memory.page_tokens),
      layers_(llm_.layers) {}

Result<OwnedCache> CompressedCache::make(const CompressedOptions& options, const KvMemory& memory,
                                         const ModelWeights* weights) {
  KVT_CHECK(!check_compressed(options.config.core, options.config.score, weights->llm()).has_value());
  std::unique_ptr<CompressedCache> out(new CompressedCache(options, memory, weights));
  if (Result<void> ok = out->allocate(); !ok) return tl::unexpected<Error>(ok.error());
  return OwnedCache(out.release());
}

Result<OwnedCache> make_compressed(const CompressedOptions& options, const KvMemory& memory,
                                   const ModelWeights* weights) {
  return CompressedCache::make(options, memory, weights);
}

Result<void> CompressedCache::allocate() {
  const CoreConfig& core = options_.config.core;
  // An entry's rows begin anywhere in a page.
  const uint32_t scratch =
      div_ceil(memory_.rows_max, memory_.page_tokens) + 2 * std::min(core.requests_max, memory_.rows_max);
  const Format format = precision_traits(core.policies.precision).prompt_format;
  Result<KvEntryMemory> kv_entries = KvEntryMemory::make(memory_, llm_, &shape_, scratch,
                                                         {format, core.policies.precision_spec.group, false});
  if (!kv_entries) return tl::unexpected<Error>(kv_entries.error());
  kv_entries_ = std::move(*kv_entries);
  if (kv_entries_.packed()) reserve_dequantized();
  if (Result<void> ok = make_attention(); !ok) return ok;
  if (Result<void> ok = make_pages(); !ok) return ok;
  if (lists_splits(partition_kind(core.policies.partition))) {
    // One CTA of attention_decode per SM.
    partition_ =
        std::make_unique<DecodePartition>(core.policies, shape_.groups, options_.partition, options_.planned,
                                          Grid{attention_.decode_ctas(), 1, memory_.page_tokens});
  }
  weights_ =
      options_.config.weights.has_value()
          ? *options_.config.weights
          : cpu::ScorerWeights::drawn(*options_.config.score.scorer, llm_,
                                      captured_queries(core.policies.scorer, core.policies.scorer_spec),
                                      options_.config.seed);
  const PolicyAxes axes = make_axes(core.policies);
  const DeviceScorer::Config scorer{options_.config.score, axes.scorer->compression_trigger()};
  Result<DeviceScorer> scores = DeviceScorer::make(scorer, &llm_, &kv_entries_, weights_, memory_.rows_max);
  if (!scores) return tl::unexpected<Error>(scores.error());
  scores_ = std::make_unique<DeviceScorer>(std::move(*scores));
  if (scorer.spec.scorer->scores_tokens())
    intents_ = std::make_unique<IntentScores>(scorer.spec, &llm_, &weights_);
  if (scores_->on_host()) {
    host_ =
        std::make_unique<HostScores>(cpu::ScorerConfig{scorer.spec, scorer.compression_trigger}, model_,
                                     &weights_, &shape_, intents_ == nullptr ? nullptr : &intents_->memory());
  }
  budget_ = std::make_unique<cpu::KvEntryBudget>(core.policies, memory_.page_tokens, &shape_.groups);
  if (Result<void> ok = make_tables(); !ok) return ok;
  reserve();
  grow(&nan_, Buffer::Kind::kDevice, sizeof(uint32_t), "counts");
  const std::vector<float> inverse = rope_frequencies(llm_).inverse;
  grow(&inv_freq_, Buffer::Kind::kDevice, inverse.size() * sizeof(float), "rotations");
  return check(cudaMemcpy(inv_freq_.as<float>(), inverse.data(), inverse.size() * sizeof(float),
                          cudaMemcpyHostToDevice),
               "copy of rotations", "");
}

CompressedCache::Request& CompressedCache::request_of(RequestId id) {
  const auto known = requests_.find(id);
  if (known != requests_.end()) return known->second;
  Request made{cpu::RequestTable(&shape_), {}};
  made.tables.resize(shape_.groups.groups());
  return requests_.emplace(id, std::move(made)).first->second;
}

void CompressedCache::take_pages(const LaunchStep& launch, uint32_t offset, cudaStream_t stream) {
  if (offset == 0) {
    for (const PlanEntry& entry : launch.entries) {
      if (!entry.first || entry.swapped_in) continue;
      Request& request = request_of(entry.request);
      request.kv_entries.clear();
      request.captured.phases.clear();
      request.repeated = {}, request.ranked = 0;
      resend_tables(&request);
      if (pages_ != nullptr) pages_->begin(&request.tail);
    }
    for (const PrefixHit& prefix_hit : launch.prefix_hits) {
      Request& request = request_of(prefix_hit.request);
      shared_.begin(launch, prefix_hit, &request.kv_entries);
      resend_tables(&request);
      const bool dropped = request.kv_entries.kv_entries(0) < request.kv_entries.tokens();
      if (request.ranked == 0 && dropped) request.ranked = request.kv_entries.tokens();
    }
  }
  for (const PageAllocation& allocation : launch.allocations) {
    if (allocation.offset != offset) continue;
    KVT_CHECK(raw(allocation.page) < memory_.pages_gpu);
    if (memory_.poison) kv_entries_.poison(allocation.page, stream);
    const RequestId request = launch.entries[allocation.entry].request;
    request_of(request).kv_entries.allocate(allocation.group, allocation.page);
    // Scorers that may share a prefix use one chunk at a time, so captured queries are not inherited.
    if (const auto source = shared_.allocated(request, allocation.group, allocation.page))
      kv_entries_.copy(*source, allocation.page, stream);
  }
  shared_.check_copied();
}

void CompressedCache::add_works(const LaunchStep& launch, std::span<const PlanEntry> entries,
                                const StepStream& on, StepRows* rows) {
  work_.clear();
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
    for (uint32_t i = 0; i < entry.stored(); ++i) rows->positions.push_back(work.rows.phase + i);
  }
  KVT_CHECK(rows_ <= memory_.rows_max);
  for (const ProbePass& pass : launch.passes) work_.at(pass.entry).pass = &pass;
  for (const Compression& compression : launch.compressions) {
    Work& work = work_.at(compression.entry);
    work.compression = &compression;
    work.rows.staged = compression.staged;
  }
  uint32_t scratch = 0;
  for (size_t i = 0; i < work_.size(); ++i) {
    Work& work = work_[i];
    cpu::RequestTable& kv_entries = work.request->kv_entries;
    KVT_CHECK(kv_entries.tokens() == work.rows.context);
    scores_->begin_rows(work.rows, &work.request->captured);
    if (work.compression != nullptr && work.compression->before) compress_before(i, on);
    kv_entries.add(work.rows.tokens, !work.rows.staged);
    work.scratch = scratch;
    scratch += div_ceil(memory_.page_tokens - 1 + work.rows.tokens, memory_.page_tokens);
  }
}

void CompressedCache::begin(const LaunchStep& launch, uint32_t offset, std::span<const PlanEntry> entries,
                            const StepStream& on, StepRows* rows) {
  take_pages(launch, offset, on.stream);
  add_works(launch, entries, on, rows);
  padded_ = rows_;
  if (has_decodes_alone()) pad(launch.tokens_padded, rows);
  write_lists(on);
  for (const Work& work : work_) {
    const uint64_t kv_entries = past(work, 0);  // of the first head, for the log
    const uint64_t read =
        work.rows.tokens * kv_entries + uint64_t{work.rows.tokens} * (work.rows.tokens + 1) / 2;
    (work.rows.tokens == 1 ? rows->decode_entries : rows->chunk_entries) += read;
  }
}

void CompressedCache::end(const LaunchStep& launch, uint32_t, std::span<const PlanEntry>,
                          const StepStream& on, DataOutcomes* values) {
  for (const LayerLists& lists : layers_) apply(lists.staged);
  if (pages_ != nullptr) {
    values->recalls.assign(llm_.layers, {});
    for (uint32_t l = 0; l < llm_.layers; ++l) {
      values->recalls[l].heads = pages_->heads_that_chose(l);
      values->recalls[l].chosen = pages_->heads_that_chose(l) * pages_->selectable();
    }
  }
  values->retained.reserve(launch.compressions.size());
  for (size_t i = 0; i < work_.size(); ++i) {
    Work& work = work_[i];
    scores_->captured(work.rows, &work.request->captured);
    if (intents_ != nullptr) remember(work, on);
    if (work.pass != nullptr) run_pass(i, on);
    if (work.compression != nullptr) answer(i, on, values);
    if (work.rows.prompt && work.rows.samples && scores_->captures_prompts_alone())
      scores_->end_rows(&work.request->captured);
  }
  for (const PrefixCheckpoint& prefix_checkpoint : launch.prefix_checkpoints)
    shared_.take(prefix_checkpoint.prefix_checkpoint, work_.at(prefix_checkpoint.entry).request->kv_entries);
  values->link_retained();
}

// What the compression of an entry has left.
void CompressedCache::answer(size_t index, const StepStream& on, DataOutcomes* values) {
  Work& work = work_[index];
  work.request->ranked = work.compression->end;
  if (work.compression->before) {
    values->retained_live.insert(values->retained_live.end(), work.live.begin(), work.live.end());
  } else if (!work.rows.staged) {
    compress(index, on, values);
  }
  if (shape_.slot_retention == SlotRetention::kMove) work.request->kv_entries.trim();
  resend_tables(work.request);
  if (memory_.poison) work.request->kv_entries.check();
  values->end_retained(work.rows.request);
  for (uint32_t head = 0; options_.retained && head < llm_.layers * llm_.kv_heads; ++head)
    options_.retained(work.rows.request, head, work.request->kv_entries.positions(head));
}

void CompressedCache::notify(const Command& command) {
  // A preempted request may still be in a step that was launched before; if it comes back, it begins anew.
  const auto* drop = std::get_if<DropRequestState>(&command);
  if (drop != nullptr && drop->reason != DropRequestState::Reason::kPreempted) {
    const auto request = requests_.find(drop->request);
    if (request == requests_.end()) return;
    if (pages_ != nullptr) pages_->end(request->second.tail);
    for (DeviceTables::Table& table : request->second.tables) tables_.free(&table);
    tables_.free(&request->second.kv_entry_table);
    scores_->end_rows(&request->second.captured);
    requests_.erase(request);
    remembered_.erase(drop->request);
  }
  const auto* session = std::get_if<DropSessionState>(&command);
  if (session != nullptr && intents_ != nullptr) intents_->forget(session->session);
}

// What the engine knows of a request besides its pages (positions, captured queries, exact keys without a
// summary) stays where it is while the request is on the host.
void CompressedCache::copy(PageId source, PageId target, cudaStream_t stream) {
  kv_entries_.copy(source, target, stream);
  if (pages_ != nullptr) pages_->copy_page(source, target, stream);
  shared_.copied(source, target);
}

// One decode and, where there is room for it, a chunk, on page 0. Nothing is written.
void CompressedCache::warm_up(uint32_t size, const StepStream& on, StepRows* rows) {
  rows->positions.assign(size, 0);
  work_.clear();
  clear_lists();
  const uint32_t table = tables_.size();
  tables_.add(0);
  rows_ = size, padded_ = 0;
  slot_rows_.assign(size, {});
  for (size_t i = 0; kv_entries_.packed() && i < size_t{llm_.layers} * size * llm_.kv_heads; ++i)
    dequantized_slots_.push_back(PackedHeads::slot(static_cast<uint32_t>(i % kDequantizedPage)));
  const uint32_t columns = kv_entries_.packed() ? 1 : kv_entries_.columns();
  for (uint32_t l = 0; pages_ != nullptr && l < llm_.layers; ++l) pages_->begin_layer();
  const uint32_t group = llm_.query_heads / llm_.kv_heads;
  for (uint32_t h = 0; h < llm_.kv_heads; ++h) {
    decodes_.push_back({h * group, kv_entries_.packed() ? 0 : table, 1, h % columns});
    if (size > 2 && attention_.chunk_takes())
      chunks_.push_back({1, 2, h, 0, kv_entries_.packed() ? 0 : table, h % columns});
  }
  for (LayerLists& lists : layers_) {
    lists.decodes.count = static_cast<uint32_t>(decodes_.size());
    lists.chunks.count = static_cast<uint32_t>(chunks_.size());
  }
  for (uint32_t head = 0; partition_ != nullptr && head < llm_.layers * llm_.kv_heads; ++head) {
    partition_->add(head, 1, 0, 1);
    if ((head + 1) % llm_.kv_heads == 0) partition_->end_layer();
  }
  send_lists(on);
}

}  // namespace kvtwin::cuda
