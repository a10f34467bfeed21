#include "engine/cpu/compressed_cache.h"

#include <algorithm>

#include "engine/base/check.h"
#include "engine/policy/budget_groups.h"
#include "engine/policy/registry.h"
#include "engine/policy/retention.h"

namespace kvtwin::cpu {
namespace {

// The query span where no window stands for it (METHODS 3.3, the fallback).
constexpr uint32_t kSpanRows = 64;

CellFormat format_of(const PolicySet& set) {
  const Format format = make_axes(set).precision->prompt_format();
  return {format, set.precision_spec.group, set.retrieval != "all"};
}

// Formats, and choosing among what is left.
std::optional<std::string> check_stored(const PolicySet& set, const PolicyAxes& axes) {
  const bool packed = set.precision != "bf16", chooses = set.retrieval != "all";
  if (packed && axes.placement->uses_host()) {
    return "placement " + set.placement +
           " copies pages between tiers, and with them would go exact keys that " +
           "summaries are made of; set placement: gpu, or precision: bf16";
  }
  if (packed && axes.precision->prompt_format() == Format::kInt2) {
    return "precision " + set.precision + " packs keys in groups of tokens, which layout " + set.layout +
           " would have to fill head by head with what is kept; set precision: int4, fp8 or fp4, or "
           "budget: all with layout: paged and retrieval: all";
  }
  if (packed && !axes.layout->keeps_phase()) {
    return "layout " + set.layout + " turns keys to new places, and precision " + set.precision +
           " has packed them: they would be quantised twice; choose layout compact";
  }
  const bool moved_late =
      axes.layout->keeping() == Keeping::kMove && axes.scorer->moment() != Moment::kChunkEnd;
  if (packed && chooses && moved_late) {
    return "retrieval " + set.retrieval + " summarises exact keys, but precision " + set.precision +
           " packs a prompt before scorer " + set.scorer +
           " moves its cells; choose a scorer that works at chunk ends, layout page_mask_dead, or precision "
           "bf16";
  }
  const bool looks = set.scorer == "h2o" || set.scorer == "tova" || set.scorer == "raas";
  if (chooses && looks && axes.scorer->moment() == Moment::kDecodeStep) {
    return "scorer " + set.scorer + " looks at what each step attends to, but retrieval " + set.retrieval +
           " lets steps read some pages only; choose a scorer that works at chunk or prompt ends, or "
           "retrieval: all";
  }
  return std::nullopt;
}

}  // namespace

CellShape cell_shape(const CoreConfig& config) {
  const PolicyAxes axes = make_axes(config.policies);
  const Retention retention(config, axes);
  CellShape out;
  out.groups = make_groups(config.policies);
  out.tables = retention.shape();
  out.keeping = retention.keeping();
  if (out.keeping == Keeping::kAll) out.keeping = Keeping::kHoles;  // of which there are none
  out.sinks = retention.sinks();
  out.rerotate = !axes.layout->keeps_phase();
  return out;
}

CompressedCache::CompressedCache(const CompressedConfig& config, const KvMemory& memory,
                                 const ModelWeights* weights)
    : config_(config),
      memory_(memory),
      llm_(weights->llm()),
      rope_(rope_frequencies(weights->llm())),
      retrieval_(config.core.policies.retrieval_spec),
      chooses_(config.core.policies.retrieval != "all"),
      shape_(cell_shape(config.core)) {}

Result<std::unique_ptr<CompressedCache>> CompressedCache::make(const CompressedConfig& config,
                                                               const KvMemory& memory,
                                                               const ModelWeights* weights) {
  std::unique_ptr<CompressedCache> out(new CompressedCache(config, memory, weights));
  const LlmSpec& llm = weights->llm();
  KVT_CHECK(!check_compressed(config.core, llm).has_value());
  const uint32_t probes = out->probe_rows();
  out->weights_ = config.weights.has_value()
                      ? *config.weights
                      : ScorerWeights::drawn(config.score.kind, llm, probes, config.seed);
  uint32_t rows = std::max(config.core.step_tokens_max, probes);
  if (config.score.kind == kernels::ScorerKind::kKvzip) {
    const ScorerSpec& spec = config.core.policies.scorer_spec;
    rows = std::max(rows, spec.repeat_tokens + spec.repeat_tail + spec.repeat_instruction);
  }
  Result<CellStore> store = CellStore::make(memory, llm, &out->shape_, rows, format_of(config.core.policies));
  if (!store) return tl::unexpected<Mistake>(store.error());
  out->store_ = std::make_unique<CellStore>(std::move(*store));
  ScorerConfig scorer;
  scorer.spec = config.score;
  scorer.moment = make_axes(config.core.policies).scorer->moment();
  scorer.span_rows = config.core.policies.budget_spec.window;
  if (scorer.span_rows == 0) scorer.span_rows = kSpanRows;
  out->scorer_ = std::make_unique<CellScorer>(scorer, weights, &out->weights_, out->store_.get());
  if (out->scorer_->scores_tokens())
    out->intents_ = std::make_unique<IntentMemory>(config.score, &out->llm_, &out->rope_, &out->weights_);
  out->budget_ = std::make_unique<CellBudget>(config.core.policies, memory.page_tokens, &out->shape_.groups);
  return out;
}

CompressedCache::Call& CompressedCache::call_of(CallId id) {
  const auto known = calls_.find(id);
  if (known != calls_.end()) return known->second;
  Call& made = calls_.emplace(id, Call{CallCells(&shape_), {}, {}}).first->second;
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
    KVT_CHECK(entry.kind == EntryKind::kChunk || entry.kind == EntryKind::kDecode);
    Work& work = work_.emplace_back();
    work.call = &call_of(entry.call);
    work.rows = {.call = entry.call,
                 .row = rows_,
                 .tokens = entry.tokens,
                 .context = entry.context,
                 .phase = work.call->cells.next_phase(),
                 .prompt = entry.kind == EntryKind::kChunk,
                 .samples = entry.samples};
    rows_ += entry.tokens;
  }
  KVT_CHECK(rows_ <= std::max(config_.core.step_tokens_max, 1u));
  for (const Compression& compression : launch.compressions) {
    Work& work = work_.at(compression.entry);
    work.compression = &compression;
    work.rows.staged = compression.staged;
  }
  for (Work& work : work_) {
    CallCells& cells = work.call->cells;
    KVT_CHECK(cells.tokens() == work.rows.context);
    scorer_->begin_rows(work.rows, &work.call->captured);
    if (work.compression != nullptr && work.compression->before) {
      std::vector<RankedHead> heads = rank_all(work);
      compress_holes(work, &heads, &work.live);
    }
    cells.add(work.rows.tokens, !work.rows.staged);
    work.own_exact = work.rows.staged || (store_->packed() && work.rows.prompt);
    if (shape_.keeping == Keeping::kHoles)
      cells.reads(0, cells.cells(0) - (work.own_exact ? work.rows.tokens : 0), &work.reads);
  }
}

void CompressedCache::take_pages(const LaunchStep& launch, uint32_t offset) {
  if (offset == 0) {
    for (const PlanEntry& entry : launch.entries) {
      if (!entry.first) continue;
      Call& call = call_of(entry.call);
      call.cells.clear();
      scorer_->begin(&call.captured);
      for (std::vector<float>& of_head : call.summaries) of_head.clear();
    }
    for (const Adoption& adoption : launch.adoptions) {
      if (adoption.cells.empty()) {
        adopt(adoption);
      } else {
        continue_from(adoption);
      }
    }
  }
  for (const PageGrant& grant : launch.grants) {
    if (grant.offset != offset) continue;
    KVT_CHECK(raw(grant.page) < memory_.pages_gpu);
    if (memory_.poison) store_->poison(grant.page);
    page_dead_.erase(grant.page);
    const CallId call = launch.entries[grant.entry].call;
    call_of(call).cells.grant(grant.group, grant.page);
    if (!copied_.empty()) fill_copy(call, grant);
  }
  for (const auto& [of, pages] : copied_) KVT_CHECK(pages.empty());
  copied_.clear();
}

// What lies in a snapshot's pages is where it was when it was taken; the call writes to copies alone. Scorers
// that may share a prefix look at one chunk at a time, so nothing else is carried over
// (CellScorer::begin_rows).
void CompressedCache::continue_from(const Adoption& adoption) {
  CallCells& cells = call_of(adoption.call).cells;
  cells = snapshots_.at(adoption.snapshot);
  std::span<const PageId> pages = adoption.pages;
  for (uint32_t g = 0; g < shape_.groups.groups(); ++g) {
    KVT_CHECK(cells.cells(shape_.groups.members(g)[0]) == adoption.cells[g]);
    const uint32_t count = div_ceil(adoption.cells[g], memory_.page_tokens), shared = adoption.shared[g];
    cells.retable(g, pages.first(shared));
    if (count > shared) {
      const std::span<const PageId> tail = pages.subspan(shared, count - shared);
      copied_[{adoption.call, g}].assign(tail.rbegin(), tail.rend());
    }
    pages = pages.subspan(count);
  }
}

void CompressedCache::fill_copy(CallId call, const PageGrant& grant) {
  const auto at = copied_.find({call, grant.group});
  if (at == copied_.end() || at->second.empty()) return;
  store_->copy(at->second.back(), grant.page);
  at->second.pop_back();
}

// What was dropped of a page travels with it.
void CompressedCache::adopt(const Adoption& adoption) {
  std::vector<bool> dead;
  for (const PageId page : adoption.pages) {
    const auto of_page = page_dead_.find(page);
    for (uint32_t slot = 0; slot < memory_.page_tokens; ++slot) {
      dead.push_back(page == kNoPage || (of_page != page_dead_.end() && of_page->second[slot]));
    }
  }
  call_of(adoption.call).cells.adopt(adoption.pages, dead);
}

void CompressedCache::end(const LaunchStep& launch, uint32_t, std::span<const PlanEntry>,
                          StepValues* values) {
  values->recalls = recalls_;
  values->kept.reserve(launch.compressions.size());
  for (const Work& work : work_) {
    if (intents_ != nullptr) remember(work);
    if (work.compression == nullptr) continue;
    if (work.compression->before) {
      values->kept_live.insert(values->kept_live.end(), work.live.begin(), work.live.end());
    } else if (!work.rows.staged) {
      compress(work, values);
    }
    if (shape_.keeping == Keeping::kMove) work.call->cells.trim();
    if (memory_.poison) work.call->cells.check();
    values->end_kept(work.rows.call);
  }
  for (const Snapshot& snapshot : launch.snapshots) {
    snapshots_.insert_or_assign(snapshot.snapshot, work_.at(snapshot.entry).call->cells);
  }
  values->link_kept();
}

void CompressedCache::told(const Command& command) {
  // A preempted call may still be in a step that was launched before; if it comes back, it begins anew.
  const auto* drop = std::get_if<DropCallState>(&command);
  if (drop != nullptr && drop->reason != DropCallState::Reason::kPreempted) {
    calls_.erase(drop->call);
    remembered_.erase(drop->call);
  }
  const auto* session = std::get_if<DropSessionState>(&command);
  if (session != nullptr && intents_ != nullptr) intents_->forget(session->session);
}

std::optional<std::string> check_compressed(const CoreConfig& config, const LlmSpec& llm) {
  const PolicySet& set = config.policies;
  const bool ring = set.layout == "arena";
  const bool streams = set.scorer == "none" || set.scorer == "streaming_llm" ||
                       set.scorer == "duo_attention" || set.scorer == "razor_attention";
  if (ring && !streams) {
    return "layout arena keeps sinks and the newest tokens, which is not what scorer " + set.scorer +
           " says; choose scorer streaming_llm, or layout compact";
  }
  if (set.layout_spec.kv_heads != llm.kv_heads) {
    return "tensor parallelism copies KV heads (" + std::to_string(set.layout_spec.kv_heads) + " for " +
           std::to_string(llm.kv_heads) +
           "), which the CPU engine does not; set tensor_parallel to at most " + std::to_string(llm.kv_heads);
  }
  const PolicyAxes axes = make_axes(set);
  if (auto wrong = check_stored(set, axes)) return wrong;
  const bool decodes = axes.scorer->moment() == Moment::kDecodeStep;
  if (set.scorer == "tova" && decodes && layout_has_groups(set.layout)) {
    return "scorer tova ranks tokens for all heads of a layer alike, but layout ragged lets them hold "
           "different ones; choose layout compact";
  }
  const bool holes = set.layout == "slot_dead" || set.layout == "page_mask_dead";
  if (holes && (set.scorer == "raas" || set.scorer == "critical_kv")) {
    return "scorer " + set.scorer + " ranks each head's cells, but layout " + set.layout +
           " drops a token from all heads at once; choose layout compact or ragged";
  }
  return std::nullopt;
}

}  // namespace kvtwin::cpu
