#include "engine/cuda/retrieval/recalled_entries.h"

#include <fmt/format.h>

#include <utility>

#include "engine/base/check.h"
#include "engine/cuda/compression/compressed_cache.h"
#include "engine/cuda/device/cuda_check.h"
#include "engine/cuda/retrieval/retrieved_cache.h"
#include "engine/methods/combinations.h"

namespace kvtwin::cuda {
namespace {

// Prompts read everything, and are on the GPU.
CompressedOptions of_prompts(CompressedOptions options) {
  CoreConfig& core = options.config.core;
  core.policies.retrieval = PolicySet().retrieval, core.policies.placement = PolicySet().placement;
  core.pages_host = 0;
  return options;
}

}  // namespace

std::optional<std::string> check_recalled(const CoreConfig& config, const kernels::ScoreSpec& score,
                                          RetrievalKind kind, const RecallCopies& copies,
                                          const LlmSpec& llm) {
  const PolicySet& set = config.policies;
  if (auto problem = cannot_combine(config, Computes::kCuda)) return problem;
  CompressedOptions prompts;
  prompts.config.core = config;
  if (const auto problem = check_compressed(of_prompts(prompts).config.core, score, llm)) return problem;
  return check_retrieved(kind, set.retrieval_spec, copies, llm, config.page_tokens);
}

Result<OwnedCache> make_recalled(const CompressedOptions& compressed, const RetrievedOptions& retrieved,
                                 const KvMemory& memory, const ModelWeights* weights) {
  return RecalledEntries::make(compressed, retrieved, memory, weights);
}

RecalledEntries::~RecalledEntries() = default;

CompressedCache& RecalledEntries::prompts() const {
  return static_cast<CompressedCache&>(*caches_[kPrompts]);
}
RetrievedCache& RecalledEntries::resident_caches() const {
  return static_cast<RetrievedCache&>(*caches_[kResidentCaches]);
}

Result<OwnedCache> RecalledEntries::make(const CompressedOptions& compressed,
                                         const RetrievedOptions& retrieved, const KvMemory& memory,
                                         const ModelWeights* weights) {
  KVT_CHECK(!check_recalled(compressed.config.core, compressed.config.score, retrieved.kind, retrieved.copies,
                            weights->llm()));
  std::unique_ptr<RecalledEntries> out(new RecalledEntries(weights->llm(), memory));
  KvMemory gpu = memory;
  gpu.pages_host = 0;
  Result<OwnedCache> prompts = make_compressed(of_prompts(compressed), gpu, weights);
  if (!prompts) return tl::unexpected<Error>(prompts.error());
  Result<OwnedCache> resident_caches = make_retrieved(retrieved, memory, weights->llm());
  if (!resident_caches) return tl::unexpected<Error>(resident_caches.error());
  out->caches_[kPrompts] = std::move(*prompts), out->caches_[kResidentCaches] = std::move(*resident_caches);
  if (Result<void> ok = out->allocate(); !ok) return tl::unexpected<Error>(ok.error());
  return OwnedCache(out.release());
}

Result<void> RecalledEntries::allocate() {
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
    if (!made) return tl::unexpected<Error>(made.error());
    *row.buffer = std::move(*made);
  }
  for (RowsUpload& upload : uploads_) {
    Result<RowsUpload> made = RowsUpload::make(uint64_t{1} << 20);
    if (!made) return tl::unexpected<Error>(made.error());
    upload = std::move(*made);
  }
  return {};
}

void RecalledEntries::force_outcomes(const DataOutcomes* given) {
  for (const OwnedCache& cache : caches_) cache->force_outcomes(given);
}

void RecalledEntries::clear() {
  last_rows_.clear();
  endings_.clear();
  for (Part& part : parts_) part = {};
}

void RecalledEntries::add_rows(uint32_t first, uint32_t count, Part* part) {
  if (!part->runs.empty() && part->runs.back().first + part->runs.back().count == first) {
    part->runs.back().count += count;
  } else {
    part->runs.push_back({first, part->count, count});
  }
  part->count += count;
}

// Entries, allocations and compressions of the step by who computes them.
void RecalledEntries::split(const LaunchStep& launch, uint32_t offset, std::span<const PlanEntry> entries) {
  std::vector<std::pair<size_t, uint32_t>> place;  // of each entry: part, and where in it
  uint32_t row = 0;
  for (size_t i = 0; i < entries.size(); ++i) {
    const PlanEntry& entry = entries[i];
    if (offset == 0 && entry.first) requests_[entry.request] = {};
    const size_t of = requests_.at(entry.request).in_resident ? kResidentCaches : kPrompts;
    Part& part = parts_[of];
    place.emplace_back(of, static_cast<uint32_t>(part.entries.size()));
    part.launched.push_back(launch.entries[i]);
    part.entries.push_back(entry);
    if (entry.stored() > 0) add_rows(row, entry.stored(), &part);
    row += entry.stored();
    if (of != kPrompts) continue;
    if (entry.samples) last_rows_.push_back({entry.request, part.count - 1});
    if ((entry.samples || entry.kind == EntryKind::kProbe) && entry.passes_left == 0)
      endings_.push_back({entry.request, entry.context + entry.stored()});
  }
  for (PageAllocation allocation : launch.allocations) {
    if (allocation.offset != offset) continue;
    const auto [of, at] = place[allocation.entry];
    const bool on_host = raw(allocation.page) >= memory_.pages_gpu;
    if (of == kPrompts) {
      Request& request = requests_.at(launch.entries[allocation.entry].request);
      (on_host ? request.host_copies : request.gpu).push_back(allocation.page);
    }
    allocation.entry = at;
    if (of == kResidentCaches || !on_host) parts_[of].allocations.push_back(allocation);
  }
  for (Compression compression : launch.compressions) {
    const auto [of, at] = place[compression.entry];
    KVT_CHECK(of == kPrompts);
    compression.entry = at;
    parts_[kPrompts].compressions.push_back(compression);
  }
  for (ProbePass pass : launch.passes) {
    pass.entry = place[pass.entry].second;
    parts_[kPrompts].passes.push_back(pass);
  }
}

void RecalledEntries::begin(const LaunchStep& launch, uint32_t offset, std::span<const PlanEntry> entries,
                            const StepStream& on, StepRows* rows) {
  KVT_CHECK(launch.prefix_hits.empty());
  clear();
  split(launch, offset, entries);
  for (const LastRow& last : last_rows_) resident_caches().expect(last.request);
  for (const size_t of : {kResidentCaches, kPrompts}) {  // the first waits for pages on their way to the host
    Part& part = parts_[of];
    part.launch = launch;
    part.launch.entries = part.launched;
    part.launch.allocations = part.allocations;
    part.launch.compressions = part.compressions;
    part.launch.passes = part.passes;
    part.launch.tokens_padded = 0;  // rows of padding belong to no part
    caches_[of]->begin(part.launch, offset, part.entries, on, &part.rows);
    KVT_CHECK(part.rows.positions.size() == part.count);
    rows->decode_entries += part.rows.decode_entries, rows->chunk_entries += part.rows.chunk_entries;
  }
  rows->positions.resize(size_t{parts_[kPrompts].count} + parts_[kResidentCaches].count);
  for (const Part& part : parts_) {
    for (const Run& run : part.runs) {
      for (uint32_t i = 0; i < run.count; ++i)
        rows->positions[run.first + i] = part.rows.positions[run.at + i];
    }
  }
  send_rows(on);
}

void RecalledEntries::send_rows(const StepStream& on) {
  for (size_t of = 0; of < 2; ++of) {
    Part& part = parts_[of];
    if (part.count == 0) continue;
    part.rows.tokens.assign(part.count, 0);  // they are not read
    on.timer->begin(Operation::kUpload);
    part.on_device = uploads_[of].send(part.rows, on.stream);
  }
}

void RecalledEntries::plan(const DeviceRows&, const StepStream& on) {
  for (size_t of = 0; of < 2; ++of) {
    if (parts_[of].count > 0) caches_[of]->plan(parts_[of].on_device, on);
  }
}

bool RecalledEntries::repeats(StepGraphKey* graph_key) const {
  const Part& part = parts_[kResidentCaches];
  if (parts_[kPrompts].count > 0 || part.count == 0) return false;
  StepGraphKey own{part.on_device, {}};
  if (!resident_caches().repeats(&own)) return false;
  graph_key->add(own.rows);
  graph_key->more.insert(graph_key->more.end(), own.more.begin(), own.more.end());
  return true;
}

SideStreams* RecalledEntries::side_streams() { return resident_caches().side_streams(); }

StepListSpec RecalledEntries::listed(uint32_t layer) const {
  const Part &of_prompts = parts_[kPrompts], &of_residents = parts_[kResidentCaches];
  StepListSpec out = resident_caches().listed(of_residents.on_device);
  const StepListSpec prompts_spec = prompts().listed(layer);
  out.compression = prompts_spec.compression;
  out.prompts = {.apart = true,
                 .prompts = of_prompts.count > 0,
                 .residents = of_residents.count > 0,
                 .prompts_aside = aside(of_prompts),
                 .residents_aside = aside(of_residents),
                 .last = !last_rows_.empty(),
                 .attention = prompts_spec.attention};
  // Beside the resident caches': what the other cache reads, and the rows of each part.
  out.attention.uploads += 1 + (of_prompts.count > 0 ? 1 : 0) + (of_residents.count > 0 ? 1 : 0);
  return out;
}

// A part's rows as they lie, if they follow one another; else where they are copied to.
LayerRows RecalledEntries::part_tensors(const Part& part, const LayerRows& tensors) const {
  const uint64_t queries = uint64_t{llm_.query_heads} * llm_.head_dim;
  const uint64_t qkv = queries + uint64_t{2} * llm_.kv_heads * llm_.head_dim;
  LayerRows out = tensors;
  if (aside(part)) {
    out.hidden = hidden_.as<__nv_bfloat16>(), out.qkv = qkv_.as<__nv_bfloat16>();
    out.q = q_.as<__nv_bfloat16>(), out.out = out_.as<__nv_bfloat16>();
    return out;
  }
  const uint64_t first = part.runs[0].first;
  out.hidden += first * llm_.hidden, out.qkv += first * qkv, out.q += first * queries;
  out.out += first * queries;
  return out;
}

void RecalledEntries::move_aside(const Part& part, const LayerRows& tensors, cudaStream_t stream) const {
  const uint64_t queries = uint64_t{llm_.query_heads} * llm_.head_dim;
  const uint64_t qkv = queries + uint64_t{2} * llm_.kv_heads * llm_.head_dim;
  const auto move = [&](const __nv_bfloat16* from, uint64_t width, const Buffer& to) {
    for (const Run& run : part.runs) {
      must(cudaMemcpyAsync(to.as<__nv_bfloat16>() + run.at * width, from + run.first * width,
                           run.count * width * sizeof(__nv_bfloat16), cudaMemcpyDeviceToDevice, stream),
           "copy of rows", run.count * width * sizeof(__nv_bfloat16));
    }
  };
  move(tensors.hidden, llm_.hidden, hidden_);
  move(tensors.qkv, qkv, qkv_);
}

void RecalledEntries::move_back(const Part& part, const LayerRows& tensors, cudaStream_t stream) const {
  const uint64_t width = uint64_t{llm_.query_heads} * llm_.head_dim;
  for (const Run& run : part.runs) {
    must(cudaMemcpyAsync(tensors.out + run.first * width, out_.as<__nv_bfloat16>() + run.at * width,
                         run.count * width * sizeof(__nv_bfloat16), cudaMemcpyDeviceToDevice, stream),
         "copy of rows", run.count * width * sizeof(__nv_bfloat16));
  }
}

void RecalledEntries::store_last_queries(uint32_t layer, const LayerRows& tensors, cudaStream_t stream) {
  const LayerRows own = part_tensors(parts_[kPrompts], tensors);
  for (const LastRow& last : last_rows_)
    resident_caches().keep_query(layer, last.request,
                                 own.q + uint64_t{last.row} * llm_.query_heads * llm_.head_dim, stream);
}

// Prompts come first. Each part has one append, where its cache starts all of its operations.
void RecalledEntries::attend(uint32_t layer, const LayerRows& tensors, const DeviceRows&,
                             const StepStream& on) {
  size_t of = parts_[kPrompts].count > 0 ? kPrompts : kResidentCaches;
  bool attended = false;
  const StepList list = list_attention(listed(layer), layer);
  for (const ListedOperation& one : list.operations()) {
    if (one.part == ListPart::kLast) {
      on.timer->begin(one);
      store_last_queries(layer, tensors, on.stream);
    } else if (one.part == ListPart::kBack) {
      on.timer->begin(one);
      move_back(parts_[of], tensors, on.stream);
    } else if (one.part == ListPart::kAside) {
      if (attended) of = kResidentCaches;
      on.timer->begin(one);
      move_aside(parts_[of], tensors, on.stream);
    } else if (one.kind == Operation::kAppend) {
      if (attended) of = kResidentCaches;
      caches_[of]->attend(layer, part_tensors(parts_[of], tensors), parts_[of].on_device, on);
      attended = true;
    }
  }
}

void RecalledEntries::end(const LaunchStep&, uint32_t offset, std::span<const PlanEntry>,
                          const StepStream& on, DataOutcomes* values) {
  Part& of_prompts = parts_[kPrompts];
  prompts().end(of_prompts.launch, offset, of_prompts.entries, on, values);
  Part& of_residents = parts_[kResidentCaches];
  resident_caches().end(of_residents.launch, offset, of_residents.entries, on, values);
  hand_over(on);
}

void RecalledEntries::hand_over(const StepStream& on) {
  std::vector<RetrievedCache::RetainedPrompt> retained;
  const cpu::RequestTableShape& shape = prompts().shape();
  for (const Ending& ending : endings_) {
    Request& request = requests_.at(ending.request);
    const cpu::RequestTable& kv_entries = prompts().kv_entries(ending.request);
    RetrievedCache::RetainedPrompt& out = retained.emplace_back();
    out.request = ending.request, out.tokens = ending.tokens, out.kv_entries = kv_entries.kv_entries(0);
    out.gpu = request.gpu, out.host_copies = request.host_copies;
    for (uint32_t head = 0; head < llm_.layers * llm_.kv_heads; ++head) {
      KVT_CHECK(kv_entries.kv_entries(head) == out.kv_entries);
      const uint32_t group = shape.groups.group_of(head);
      out.heads.push_back({kv_entries.pages(group), shape.groups.column_of(head)});
    }
  }
  resident_caches().take_over(retained, prompts().memory().kv_entries(nullptr, false), on);
  for (const Ending& ending : endings_) {
    requests_.at(ending.request) = {.in_resident = true, .gpu = {}, .host_copies = {}};
    prompts().notify(DropRequestState{{}, ending.request, DropRequestState::Reason::kFinished});
  }
}

void RecalledEntries::notify(const Command& command) {
  for (const OwnedCache& cache : caches_) cache->notify(command);
  const auto* drop = std::get_if<DropRequestState>(&command);
  // A preempted request may still be in a step that was launched before.
  if (drop != nullptr && drop->reason != DropRequestState::Reason::kPreempted) requests_.erase(drop->request);
}

void RecalledEntries::copy(PageId, PageId, cudaStream_t) {
  KVT_CHECK(!"what is left of a prompt goes to its home by itself");
}

void RecalledEntries::warm_up(uint32_t size, const StepStream& on, StepRows* rows) {
  clear();
  Part& part = parts_[kPrompts];
  add_rows(0, size, &part);
  prompts().warm_up(size, on, &part.rows);
  rows->positions = part.rows.positions;
  send_rows(on);
}

}  // namespace kvtwin::cuda
