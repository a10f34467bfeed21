#include "engine/cuda/recalled_cells.h"

#include <fmt/format.h>

#include <utility>

#include "engine/base/check.h"
#include "engine/cuda/compressed_cache.h"
#include "engine/cuda/cuda_check.h"
#include "engine/cuda/retrieved_cache.h"

namespace kvtwin::cuda {
namespace {

// Prompts read everything, and are on the GPU.
CompressedOptions of_prompts(CompressedOptions options) {
  CoreConfig& core = options.config.core;
  core.policies.retrieval = "all", core.policies.placement = "gpu", core.pages_host = 0;
  return options;
}

}  // namespace

std::optional<std::string> check_recalled(const CoreConfig& config, const kernels::ScoreSpec& score,
                                          RetrievalMethod method, const LlmSpec& llm) {
  const PolicySet& set = config.policies;
  if (method != RetrievalMethod::kFreekv && method != RetrievalMethod::kArkvale)
    return fmt::format("retrieval {} beside dropped cells is; freekv and arkvale are computed",
                       set.retrieval);
  if (set.layout != "compact" || set.placement != "arena" || set.precision != "bf16")
    return fmt::format("layout {}, placement {} and precision {} are; compact, arena and bf16 are computed",
                       set.layout, set.placement, set.precision);
  CompressedOptions prompts;
  prompts.config.core = config;
  if (const auto wrong = check_compressed(of_prompts(prompts).config.core, score, llm)) return wrong;
  return check_retrieved(method, set.retrieval_spec, llm, config.page_tokens);
}

Result<OwnedCache> make_recalled(const CompressedOptions& compressed, const RetrievedOptions& retrieved,
                                 const KvMemory& memory, const ModelWeights* weights) {
  return RecalledCells::make(compressed, retrieved, memory, weights);
}

RecalledCells::~RecalledCells() = default;

CompressedCache& RecalledCells::prompts() const { return static_cast<CompressedCache&>(*caches_[kPrompts]); }
RetrievedCache& RecalledCells::arenas() const { return static_cast<RetrievedCache&>(*caches_[kArenas]); }

Result<OwnedCache> RecalledCells::make(const CompressedOptions& compressed, const RetrievedOptions& retrieved,
                                       const KvMemory& memory, const ModelWeights* weights) {
  KVT_CHECK(
      !check_recalled(compressed.config.core, compressed.config.score, retrieved.method, weights->llm()));
  std::unique_ptr<RecalledCells> out(new RecalledCells(weights->llm(), memory));
  KvMemory gpu = memory;
  gpu.pages_host = 0;
  Result<OwnedCache> prompts = make_compressed(of_prompts(compressed), gpu, weights);
  if (!prompts) return tl::unexpected<Mistake>(prompts.error());
  Result<OwnedCache> arenas = make_retrieved(retrieved, memory, weights->llm());
  if (!arenas) return tl::unexpected<Mistake>(arenas.error());
  out->caches_[kPrompts] = std::move(*prompts), out->caches_[kArenas] = std::move(*arenas);
  if (Result<void> ok = out->allocate(); !ok) return tl::unexpected<Mistake>(ok.error());
  return OwnedCache(out.release());
}

Result<void> RecalledCells::allocate() {
  const uint64_t rows = memory_.rows_max, each = sizeof(__nv_bfloat16);
  const uint64_t queries = uint64_t{llm_.query_heads} * llm_.head_dim;
  const struct {
    Buffer* buffer;
    uint64_t width;
    const char* what;
  } rows_of[] = {{&hidden_, llm_.hidden, "hidden rows"},
                 {&qkv_, queries + uint64_t{2} * llm_.kv_heads * llm_.head_dim, "queries, keys and values"},
                 {&q_, queries, "queries"},
                 {&out_, queries, "what attention gives"}};
  for (const auto& row : rows_of) {
    Result<Buffer> made = Buffer::make(Buffer::Kind::kDevice, rows * row.width * each, row.what,
                                       fmt::format("{} rows that are copied aside", rows));
    if (!made) return tl::unexpected<Mistake>(made.error());
    *row.buffer = std::move(*made);
  }
  for (RowsUpload& upload : uploads_) {
    Result<RowsUpload> made = RowsUpload::make(uint64_t{1} << 20);
    if (!made) return tl::unexpected<Mistake>(made.error());
    upload = std::move(*made);
  }
  return {};
}

void RecalledCells::impose(const StepValues* given) {
  for (const OwnedCache& cache : caches_) cache->impose(given);
}

void RecalledCells::clear() {
  endings_.clear();
  for (Part& part : parts_) part = {};
}

void RecalledCells::add_rows(uint32_t first, uint32_t count, Part* part) {
  if (!part->runs.empty() && part->runs.back().first + part->runs.back().count == first) {
    part->runs.back().count += count;
  } else {
    part->runs.push_back({first, part->count, count});
  }
  part->count += count;
}

// Entries, grants and compressions of the step by who computes them.
void RecalledCells::split(const LaunchStep& launch, uint32_t offset, std::span<const PlanEntry> entries) {
  std::vector<std::pair<size_t, uint32_t>> place;  // of each entry: part, and where in it
  uint32_t row = 0;
  for (size_t i = 0; i < entries.size(); ++i) {
    const PlanEntry& entry = entries[i];
    if (offset == 0 && entry.first) calls_[entry.call] = {};
    const size_t of = calls_.at(entry.call).in_arena ? kArenas : kPrompts;
    Part& part = parts_[of];
    place.emplace_back(of, static_cast<uint32_t>(part.entries.size()));
    part.launched.push_back(launch.entries[i]);
    part.entries.push_back(entry);
    add_rows(row, entry.tokens, &part);
    row += entry.tokens;
    if (of == kPrompts && entry.samples)
      endings_.push_back({entry.call, entry.context + entry.tokens, part.count - 1});
  }
  for (PageGrant grant : launch.grants) {
    if (grant.offset != offset) continue;
    const auto [of, at] = place[grant.entry];
    const bool on_host = raw(grant.page) >= memory_.pages_gpu;
    if (of == kPrompts) {
      Call& call = calls_.at(launch.entries[grant.entry].call);
      (on_host ? call.homes : call.gpu).push_back(grant.page);
    }
    grant.entry = at;
    if (of == kArenas || !on_host) parts_[of].grants.push_back(grant);
  }
  for (Compression compression : launch.compressions) {
    const auto [of, at] = place[compression.entry];
    KVT_CHECK(of == kPrompts);
    compression.entry = at;
    parts_[kPrompts].compressions.push_back(compression);
  }
}

void RecalledCells::begin(const LaunchStep& launch, uint32_t offset, std::span<const PlanEntry> entries,
                          const StepStream& on, StepRows* rows) {
  KVT_CHECK(launch.adoptions.empty());
  clear();
  split(launch, offset, entries);
  for (const Ending& ending : endings_) arenas().expect(ending.call);
  for (size_t of = 0; of < 2; ++of) {
    Part& part = parts_[of];
    part.launch = launch;
    part.launch.entries = part.launched;
    part.launch.grants = part.grants;
    part.launch.compressions = part.compressions;
    caches_[of]->begin(part.launch, offset, part.entries, on, &part.rows);
    KVT_CHECK(part.rows.positions.size() == part.count);
    rows->decode_cells += part.rows.decode_cells, rows->chunk_cells += part.rows.chunk_cells;
  }
  rows->positions.resize(size_t{parts_[kPrompts].count} + parts_[kArenas].count);
  for (const Part& part : parts_) {
    for (const Run& run : part.runs) {
      for (uint32_t i = 0; i < run.count; ++i)
        rows->positions[run.first + i] = part.rows.positions[run.at + i];
    }
  }
  send_rows(on.stream);
}

void RecalledCells::send_rows(cudaStream_t stream) {
  for (size_t of = 0; of < 2; ++of) {
    Part& part = parts_[of];
    if (part.count == 0) continue;
    part.rows.tokens.assign(part.count, 0);  // nobody looks at them
    part.on_device = uploads_[of].send(part.rows, stream);
  }
}

void RecalledCells::plan(const DeviceRows&, const StepStream& on) {
  for (size_t of = 0; of < 2; ++of) {
    if (parts_[of].count > 0) caches_[of]->plan(parts_[of].on_device, on);
  }
}

bool RecalledCells::repeats(StepForm* form) const {
  const Part& part = parts_[kArenas];
  if (parts_[kPrompts].count > 0 || part.count == 0) return false;
  StepForm own{part.on_device, {}};
  if (!arenas().repeats(&own)) return false;
  form->add(own.rows);
  form->more.insert(form->more.end(), own.more.begin(), own.more.end());
  return true;
}

StepLanes* RecalledCells::lanes() { return arenas().lanes(); }

// A part's rows as they lie, if they follow one another; else copied aside.
LayerRows RecalledCells::part_tensors(const Part& part, const LayerRows& tensors, cudaStream_t stream) const {
  const uint64_t queries = uint64_t{llm_.query_heads} * llm_.head_dim;
  const uint64_t qkv = queries + uint64_t{2} * llm_.kv_heads * llm_.head_dim;
  LayerRows out = tensors;
  if (part.runs.size() == 1) {
    const uint64_t first = part.runs[0].first;
    out.hidden += first * llm_.hidden, out.qkv += first * qkv, out.q += first * queries;
    out.out += first * queries;
    return out;
  }
  const auto aside = [&](const __nv_bfloat16* from, uint64_t width, const Buffer& to) {
    for (const Run& run : part.runs) {
      must(cudaMemcpyAsync(to.as<__nv_bfloat16>() + run.at * width, from + run.first * width,
                           run.count * width * sizeof(__nv_bfloat16), cudaMemcpyDeviceToDevice, stream),
           "copy of rows", run.count * width * sizeof(__nv_bfloat16));
    }
    return to.as<__nv_bfloat16>();
  };
  out.hidden = aside(tensors.hidden, llm_.hidden, hidden_);
  out.qkv = aside(tensors.qkv, qkv, qkv_);
  out.q = q_.as<__nv_bfloat16>(), out.out = out_.as<__nv_bfloat16>();
  return out;
}

void RecalledCells::put_back(const Part& part, const LayerRows& from, const LayerRows& tensors,
                             cudaStream_t stream) const {
  if (part.runs.size() == 1) return;
  const uint64_t width = uint64_t{llm_.query_heads} * llm_.head_dim;
  for (const Run& run : part.runs) {
    must(cudaMemcpyAsync(tensors.out + run.first * width, from.out + run.at * width,
                         run.count * width * sizeof(__nv_bfloat16), cudaMemcpyDeviceToDevice, stream),
         "copy of rows", run.count * width * sizeof(__nv_bfloat16));
  }
}

void RecalledCells::attend(uint32_t layer, const LayerRows& tensors, const DeviceRows&,
                           const StepStream& on) {
  for (size_t of = 0; of < 2; ++of) {
    const Part& part = parts_[of];
    if (part.count == 0) continue;
    const LayerRows own = part_tensors(part, tensors, on.stream);
    caches_[of]->attend(layer, own, part.on_device, on);
    put_back(part, own, tensors, on.stream);
    if (of != kPrompts) continue;
    for (const Ending& ending : endings_)
      arenas().keep_query(layer, ending.call, own.q + uint64_t{ending.row} * llm_.query_heads * llm_.head_dim,
                          on.stream);
  }
}

void RecalledCells::end(const LaunchStep&, uint32_t offset, std::span<const PlanEntry>, const StepStream& on,
                        StepValues* values) {
  Part& of_prompts = parts_[kPrompts];
  prompts().end(of_prompts.launch, offset, of_prompts.entries, on, values);
  Part& of_arenas = parts_[kArenas];
  arenas().end(of_arenas.launch, offset, of_arenas.entries, on, values);
  hand_over(on);
}

void RecalledCells::hand_over(const StepStream& on) {
  std::vector<RetrievedCache::KeptPrompt> kept;
  const cpu::CellShape& shape = prompts().shape();
  for (const Ending& ending : endings_) {
    Call& call = calls_.at(ending.call);
    const cpu::CallCells& cells = prompts().cells(ending.call);
    RetrievedCache::KeptPrompt& out = kept.emplace_back();
    out.call = ending.call, out.tokens = ending.tokens, out.cells = cells.cells(0);
    out.gpu = call.gpu, out.homes = call.homes;
    for (uint32_t head = 0; head < llm_.layers * llm_.kv_heads; ++head) {
      KVT_CHECK(cells.cells(head) == out.cells);
      const uint32_t group = shape.groups.group_of(head);
      out.heads.push_back({cells.pages(group), shape.groups.column_of(head)});
    }
  }
  arenas().take_over(kept, prompts().memory().cells(nullptr, false), on.stream);
  for (const Ending& ending : endings_) {
    calls_.at(ending.call) = {.in_arena = true, .gpu = {}, .homes = {}};
    prompts().told(DropCallState{{}, ending.call, DropCallState::Reason::kFinished});
  }
}

void RecalledCells::told(const Command& command) {
  for (const OwnedCache& cache : caches_) cache->told(command);
  const auto* drop = std::get_if<DropCallState>(&command);
  // A preempted call may still be in a step that was launched before.
  if (drop != nullptr && drop->reason != DropCallState::Reason::kPreempted) calls_.erase(drop->call);
}

void RecalledCells::copy(PageId, PageId, cudaStream_t) {
  KVT_CHECK(!"what is left of a prompt goes to its home by itself");
}

void RecalledCells::warm_up(uint32_t size, const StepStream& on, StepRows* rows) {
  clear();
  Part& part = parts_[kPrompts];
  add_rows(0, size, &part);
  prompts().warm_up(size, on, &part.rows);
  rows->positions = part.rows.positions;
  send_rows(on.stream);
}

}  // namespace kvtwin::cuda
