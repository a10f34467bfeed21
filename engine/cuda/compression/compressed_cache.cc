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
      request.repeated.clear(), request.ranked = 0;
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

// Decodes of all layers at once, where these have equally many and nothing else.
void CompressedCache::plan(const DeviceRows& rows, const StepStream& on) {
  const size_t each = layers_[0].decodes.count;
  planned_ = partition_ == nullptr && !kv_entries_.packed() && each > 0 && chunks_.empty() &&
             decodes_.size() == each * llm_.layers;
  for (uint32_t l = 0; l < llm_.layers; ++l) planned_ = planned_ && layers_[l].decodes.first == l * each;
  if (planned_) attention_.plan_layers(rows_of(0, rows), kv_entries_.pool(), on.stream);
}

DeviceRows CompressedCache::rows_of(uint32_t layer, const DeviceRows& rows) const {
  const LayerLists& lists = layers_[layer];
  DeviceRows mine = rows;
  mine.pages = tables_.on_device();
  mine.slots = slots_of(layer);
  mine.decodes = lists_.at(at_.decodes) + lists.decodes.first, mine.decodes_count = lists.decodes.count;
  mine.listed = listed_;
  mine.chunks = lists_.at(at_.chunks) + lists.chunks.first, mine.chunks_count = lists.chunks.count;
  mine.others = lists_.at(at_.others) + lists.others.first, mine.other_rows = lists.others.count;
  return mine;
}

void CompressedCache::attend(uint32_t layer, const LayerRows& tensors, const DeviceRows& rows,
                             const StepStream& on) {
  const LayerLists& lists = layers_[layer];
  DeviceRows mine = rows_of(layer, rows);
  const auto move = [&](const ListAt<CompactHead>& list, const Part& part) {
    if (part.count == 0) return;
    on.timer->begin(Operation::kMove, layer);
    if (kv_entries_.packed()) {
      return kv_entries_.packed_heads().move(tables_.on_device(), kv_entries_.scorer_state(),
                                             lists_.at(list) + part.first, lists_.at(at_.iota), part.count,
                                             on.stream);
    }
    CompactArgs args{kv_entries_.kv_entries(mine.pages, false), kv_entries_.pool(),
                     kv_entries_.scorer_state(), lists_.at(list) + part.first, lists_.at(at_.iota)};
    args.count = part.count;
    must(compact_entries(args, on.stream), "compact_entries", 0,
         [&] { return fmt::format("{} heads", part.count); });
  };
  const AppendSlot* const slots = mine.slots;
  if (kv_entries_.packed()) {
    mine.pages = kv_entries_.packed_heads().iota();
    mine.slots = lists_.at(at_.dequantized_slots) + size_t{layer} * slot_rows_.size() * llm_.kv_heads;
    if (memory_.poison) kv_entries_.packed_heads().poison_dequantized(on.stream);
  }
  if (!planned_) {
    on.timer->begin(Operation::kPlan, layer);
    const DecodePartition::Splits splits =
        partition_ == nullptr ? DecodePartition::Splits() : partition_->of_layer(layer, lists_);
    attention_.plan(mine, kv_entries_.pool(), on.stream, splits);
  }
  move(at_.copies, lists.copies);
  on.timer->begin(Operation::kAppend, layer);
  attention_.append(tensors, mine, kv_entries_.pool(), on.stream);
  if (kv_entries_.packed()) convert_rows(layer, on);
  auto* const tables = const_cast<uint32_t*>(tables_.on_device());  // with gaps that are filled here
  if (pages_ != nullptr) {
    on.timer->begin(Operation::kScore, layer);
    pages_->keep_rows(layer, lists_, kv_entries_.packed_heads(), on.stream);
    pages_->choose(layer, lists_, tables, tensors.q, on.stream);
  }
  mine.slots = slots;  // scorer state lies with the retained KV entries
  if (scores_->has_scorer_state()) on.timer->begin(Operation::kCapture, layer);
  scores_->update_state(layer, tensors, mine, access_.forward->matmul(), on.stream);
  attention_.attend(layer, tensors, mine, kv_entries_.pool(), on.stream, on.timer);
  if (lists.fused.count > 0) {
    on.timer->begin(Operation::kPackedAttention, layer);
    kv_entries_.packed_heads().attend(tables, lists_.at(at_.fused) + lists.fused.first, lists.fused.count,
                                      kv_entries_.columns(), tensors, on.stream);
  }
  if (pages_ != nullptr)
    pages_->attend(layer, lists_, tables, kv_entries_.packed_heads(), tensors, on.stream);
  if (lists.runs.count > 0) attend_runs(layer, tensors, on);
  if (probing_.has_value()) return score_probes(layer, tensors, on);
  observe(layer, tensors, on);
  if (lists.staged.count() > 0) run_staged(layer, tensors, on);
  move(at_.holds, lists.holds);
}

// Chunks whose KV entries no table of pages names: dropped slots, and rings that have wrapped.
void CompressedCache::attend_runs(uint32_t layer, const LayerRows& tensors, const StepStream& on) {
  on.timer->begin(Operation::kRowAttention, layer);
  const Part& runs = layers_[layer].runs;
  AttentionRowsArgs args;
  const KvEntryPool kv_entries = kv_entries_.kv_entries(tables_.on_device(), true);
  args.pool = kv_entries.pool, args.pages = kv_entries.pages, args.list = lists_.at(at_.runs) + runs.first;
  args.q = tensors.q, args.out = tensors.out;
  args.scale = 1 / std::sqrt(static_cast<float>(llm_.head_dim));
  args.rows = runs.count, args.query_heads = llm_.query_heads, args.kv_heads = llm_.kv_heads;
  args.head_dim = llm_.head_dim, args.page_tokens = kv_entries.page_tokens;
  args.heads_per_page = kv_entries.heads_per_page;
  args.by_head = args.listed = args.runs = true;
  must(attention_rows(args, on.stream), "attention_rows", 0,
       [&] { return fmt::format("{} rows and heads of chunks, layer {}", runs.count, layer); });
}

// Scorer state that grows with attention scores, and query rows that are needed later.
void CompressedCache::observe(uint32_t layer, const LayerRows& tensors, const StepStream& on) {
  const auto captures = [&](const Work& work) {
    return scores_->observes(work.rows) || scores_->capture_range(work.rows).count > 0;
  };
  if (std::none_of(work_.begin(), work_.end(), captures)) return;
  on.timer->begin(Operation::kCapture, layer);
  const LayerLists& lists = layers_[layer];
  AttentionScoreArgs attention_scores = attention_score_args(tensors.q);
  const bool stamps =
      scores_->spec().scorer->source == kernels::ScoreSource::kStamps;  // each at its own request's time
  uint32_t first = lists.score_heads.first;
  for (size_t i = 0; i < work_.size();) {
    Work& work = work_[i++];
    const cpu::StepRows& rows = work.rows;
    if (!scores_->observes(rows)) continue;
    attention_scores.kv_entries.listed = read_of(&work, layer * llm_.kv_heads).listed;
    // Decodes of all requests are scored together. A chunk is scored alone: its kernels distribute its query
    // rows out to the SMs by how many there are, and how many KV entries (attention_score_grid.h).
    attention_scores.queries_max = stamps ? 1 : rows.tokens, attention_scores.count = llm_.kv_heads;
    for (; !stamps && rows.tokens == 1 && i < work_.size() && work_[i].rows.tokens == 1 &&
           scores_->observes(work_[i].rows);
         ++i)
      attention_scores.count += llm_.kv_heads;
    attention_scores.rows_max = 0;
    for (uint32_t head = first; head < first + attention_scores.count; ++head)
      attention_scores.rows_max = std::max(attention_scores.rows_max, score_heads_[head].kv_entries.rows);
    attention_scores.heads = lists_.at(at_.score_heads) + first;
    scores_->observe_state(attention_scores, rows.context + rows.tokens, on.stream);
    first += attention_scores.count;
  }
  for (Work& work : work_) scores_->capture(layer, work.rows, tensors.q, &work.request->captured, on.stream);
}

AttentionScoreArgs CompressedCache::attention_score_args(const __nv_bfloat16* q) const {
  AttentionScoreArgs attention_scores;
  attention_scores.kv_entries = kv_entries_.kv_entries(tables_.on_device(), false);
  attention_scores.heads = lists_.at(at_.score_heads), attention_scores.visible = lists_.at(at_.visible);
  attention_scores.q = q, attention_scores.q_stride = llm_.query_heads * llm_.head_dim;
  attention_scores.scale = 1 / std::sqrt(static_cast<float>(llm_.head_dim));
  attention_scores.group = llm_.query_heads / llm_.kv_heads;
  attention_scores.rows_max = score_rows_max_, attention_scores.queries_max = score_queries_max_,
  attention_scores.stride = score_rows_max_;
  return attention_scores;
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
