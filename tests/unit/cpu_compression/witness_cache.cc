#include "tests/unit/cpu_compression/witness_cache.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "engine/base/check.h"
#include "engine/methods/registry.h"
#include "kernels/common/small_floats.h"
#include "kernels/packed/packed_page.h"

namespace kvtwin::testing {

WitnessCache::WitnessCache(std::unique_ptr<cpu::CompressedCache> cache, const LlmSpec& llm,
                           const CoreConfig& config, ChoiceWitness* choices)
    : cache_(std::move(cache)),
      llm_(llm),
      rope_(rope_frequencies(llm)),
      config_(config),
      page_tokens_(config.page_tokens),
      format_(precision_traits(config.policies.precision).prompt_format),
      choices_(choices) {}

WitnessCache::KvEntry& WitnessCache::kv_entry(Request* request, uint32_t position) {
  if (!dropped_slots()) return request->kv_entries[position];
  const PageId page = request->pages.at(position / page_tokens_);
  REQUIRE(page != kNoPage);
  return slots_[uint64_t{raw(page)} * page_tokens_ + position % page_tokens_];
}

const std::vector<WitnessCache::Turn>& WitnessCache::turns_of(uint32_t phase) const {
  if (turns_.size() <= phase) turns_.resize(phase + 1);
  std::vector<Turn>& turns = turns_[phase];
  for (size_t i = turns.size(); i < llm_.head_dim / 2; ++i) {
    const auto angle = static_cast<double>(static_cast<float>(phase) * rope_.inverse[i]);
    const auto scale = static_cast<double>(rope_.scale);
    turns.push_back({std::cos(angle) * scale, std::sin(angle) * scale});
  }
  return turns;
}

std::vector<double> WitnessCache::turned(const double* row, uint32_t phase) const {
  const uint32_t half = llm_.head_dim / 2;
  std::vector<double> out(llm_.head_dim);
  const std::vector<Turn>& turns = turns_of(phase);
  for (uint32_t i = 0; i < half; ++i) {
    const auto [c, s] = turns[i];
    out[i] = row[i] * c - row[i + half] * s;
    out[i + half] = row[i + half] * c + row[i] * s;
  }
  return out;
}

void WitnessCache::begin(const LaunchStep& launch, uint32_t offset, std::span<const PlanEntry> entries) {
  cache_->begin(launch, offset, entries);
  entries_.assign(entries.begin(), entries.end());
  for (PlanEntry& entry : entries_) entry.tokens = entry.stored();  // passes have no rows here
  const uint32_t heads = llm_.layers * llm_.kv_heads;
  for (const PlanEntry& entry : entries_) {
    Request& request = requests_[entry.request];
    if (offset == 0 && entry.first && !entry.swapped_in) request = {};
    request.dropped_positions.resize(heads);
    request.gathered.resize(heads);
    // Tokens pass through all layers in sequence.
    for (uint32_t i = 0; i < std::min(entry.tokens, kRecentRows); ++i) request.recent.emplace_back(heads);
    while (request.recent.size() > kRecentRows) request.recent.pop_front();
    request.tables.resize(cache_->shape().groups.groups());
  }
  if (offset == 0) {
    for (const PrefixHit& prefix_hit : launch.prefix_hits) {
      const auto entry = std::find_if(entries.begin(), entries.end(),
                                      [&](const PlanEntry& of) { return of.request == prefix_hit.request; });
      entry->swapped_in ? swap_in(prefix_hit) : reuse(prefix_hit);
    }
  }
  for (const PageAllocation& allocation : launch.allocations) {
    if (allocation.offset != offset) continue;
    Request& request = requests_[launch.entries[allocation.entry].request];
    ++request.tables[allocation.group];
    if (dropped_slots()) request.pages.push_back(allocation.page);
  }
  before_.clear();
  for (const PlanEntry& entry : entries) {
    std::vector<std::vector<uint32_t>>& of_entry = before_.emplace_back();
    for (uint32_t head = 0; head < heads; ++head) {
      std::vector<uint32_t>& left = of_entry.emplace_back();
      for (const uint32_t p : cache_->positions(entry.request, head)) {
        if (p < entry.context) left.push_back(p);
      }
      if (entry.first && !entry.swapped_in) reused_dropped_ += entry.context - left.size();
      for (const uint32_t p : left)
        CHECK_MESSAGE(!requests_[entry.request].dropped_positions[head].contains(p), "back again");
    }
  }
}

// A session never sees the entries that another session retained (docs/design/methods/intentkv.md#freeing).
void WitnessCache::reuse(const PrefixHit& prefix_hit) {
  if (!prefix_hit.kv_entries.empty()) {
    const Request& from = prefix_checkpoints_.at(prefix_hit.prefix_checkpoint);
    Request& request = requests_[prefix_hit.request];
    const bool own = !request.kv_entries.empty();
    if (!own) reused_ += from.kv_entries.size();
    request.kv_entries = from.kv_entries;
    request.dropped_positions = from.dropped_positions;
    request.tables.assign(prefix_hit.shared.begin(), prefix_hit.shared.end());
    return;
  }
  requests_[prefix_hit.request].pages.assign(prefix_hit.pages.begin(), prefix_hit.pages.end());
  for (const PageId page : prefix_hit.pages) {
    reused_ += page_tokens_;
    for (uint32_t slot = 0; page != kNoPage && slot < page_tokens_; ++slot) {
      CHECK(slots_.at(uint64_t{raw(page)} * page_tokens_ + slot).session ==
            engine_.session(prefix_hit.request));
    }
  }
}

// The request has the entries that it had, in other pages.
void WitnessCache::swap_in(const PrefixHit& prefix_hit) {
  Request& request = requests_[prefix_hit.request];
  request.pages.assign(prefix_hit.pages.begin(), prefix_hit.pages.end());
  request.tables.assign(prefix_hit.shared.begin(), prefix_hit.shared.end());
}

// the positions that token `row` of the entry may read.
std::vector<uint32_t> WitnessCache::readable(const PlanEntry& entry, uint32_t head, uint32_t row) const {
  const size_t index = static_cast<size_t>(&entry - entries_.data());
  const cpu::RequestTableShape& shape = cache_->shape();
  const uint32_t position = entry.context + row;
  std::vector<uint32_t> out;
  if (shape.is_ring(shape.groups.group_of(head))) {
    const uint32_t kv_entries = shape.ring_slots(), sinks = std::min(shape.sinks, kv_entries - 1);
    for (uint32_t p = 0; p <= position; ++p) {
      if (p < sinks || p + kv_entries - sinks > position) out.push_back(p);
    }
    return out;
  }
  out = before_[index][head];
  for (uint32_t p = entry.context; p <= position; ++p) out.push_back(p);
  return out;
}

void WitnessCache::hidden(uint32_t layer, const float* x) {
  cache_->hidden(layer, x);
  for (const PlanEntry& entry : entries_) {
    for (uint32_t i = 0; i < entry.tokens; ++i, x += llm_.hidden) {
      if (hidden_seen) hidden_seen(entry.request, layer, entry.context + i, x);
    }
  }
}

void WitnessCache::attend(uint32_t layer, float* q, float* k, const float* v, float* out) {
  const uint32_t kv_width = llm_.kv_heads * llm_.head_dim, q_width = llm_.query_heads * llm_.head_dim;
  uint32_t rows = 0;
  for (const PlanEntry& entry : entries_) {
    for (uint32_t i = 0; i < entry.tokens; ++i, ++rows) {
      KvEntry& made = kv_entry(&requests_[entry.request], entry.context + i);
      made.session = engine_.session(entry.request);
      made.keys.resize(llm_.layers), made.values.resize(llm_.layers);
      made.keys[layer].assign(k + rows * kv_width, k + (rows + 1) * kv_width);
      made.values[layer].assign(v + rows * kv_width, v + (rows + 1) * kv_width);
    }
  }
  const std::vector<float> queries(q, q + size_t{rows} * q_width);
  if (choices_ != nullptr) choices_->reads.clear();
  cache_->attend(layer, q, k, v, out);
  uint32_t row = 0;
  for (const PlanEntry& entry : entries_) {
    for (uint32_t i = 0; i < entry.tokens && format_ != Format::kBf16; ++i, ++row) {
      store(layer, k + size_t{row} * kv_width, v + size_t{row} * kv_width,
            &kv_entry(&requests_[entry.request], entry.context + i));
    }
  }
  row = 0;
  for (const PlanEntry& entry : entries_) {
    check_rows(layer, entry, row, &requests_[entry.request], queries.data(), out);
    row += entry.tokens;
  }
}

void WitnessCache::check_rows(uint32_t layer, const PlanEntry& entry, uint32_t row, Request* request,
                              const float* q, const float* out) {
  const uint32_t group = llm_.query_heads / llm_.kv_heads, dim = llm_.head_dim;
  const double scale = 1.0 / std::sqrt(static_cast<double>(dim));
  const bool rerotate = cache_->shape().rerotate;
  for (uint32_t h = 0; h < llm_.kv_heads; ++h) {
    const uint32_t head = layer * llm_.kv_heads + h;
    Row& gathered = request->gathered[head];
    gathered.resize(entry.context + entry.tokens, 0.0);
    for (uint32_t i = 0; i < entry.tokens; ++i) {
      std::vector<uint32_t> reads = readable(entry, head, i);
      const float* const own = q + (size_t{row + i} * llm_.query_heads + h * group) * dim;
      if (entry.kind == EntryKind::kDecode && choices_ != nullptr)
        reads = check_choice(request, entry, layer, h, reads, own);
      std::vector<std::vector<double>> keys;
      for (uint32_t kv_entry_index = 0; kv_entry_index < reads.size(); ++kv_entry_index) {
        const uint32_t position = reads[kv_entry_index];
        keys.push_back(key_of(kv_entry(request, position), entry, position, layer, h,
                              rerotate ? kv_entry_index : position));
      }
      const uint32_t behind = entry.tokens - i;  // number of tokens from this one to the newest
      std::vector<Row>* recent = nullptr;
      if (behind <= request->recent.size()) {
        recent = &request->recent[request->recent.size() - behind][head];
        recent->assign(group, Row(entry.context + entry.tokens, 0.0));
      }
      for (uint32_t g = 0; g < group; ++g) {
        const size_t at = (size_t{row + i} * llm_.query_heads + h * group + g) * dim;
        const std::vector<double> dequantized(q + at, q + at + dim);
        const uint32_t phase = rerotate ? static_cast<uint32_t>(reads.size()) - 1 : entry.context + i;
        const std::vector<double> query = turned(dequantized.data(), phase);
        std::vector<double> p(reads.size());
        double most = -INFINITY, sum = 0;
        for (size_t c = 0; c < reads.size(); ++c) {
          for (uint32_t d = 0; d < dim; ++d) p[c] += query[d] * keys[c][d];
          most = std::max(most, p[c] *= scale);
        }
        for (double& x : p) sum += x = std::exp(x - most);
        std::vector<double> expected(dim, 0.0);
        for (double& x : p) x /= sum;
        if (row_seen) row_seen({entry.request, layer, h * group + g, entry.context + i, query, reads, p});
        for (size_t c = 0; c < reads.size(); ++c) {
          const KvEntry& from = kv_entry(request, reads[c]);
          const bool chunk = entry.kind == EntryKind::kChunk && reads[c] >= entry.context;
          const auto& values = format_ == Format::kBf16 ? from.values
                               : chunk                  ? from.exact_values
                                                        : from.stored_values;
          for (uint32_t d = 0; d < dim; ++d) expected[d] += p[c] * values[layer][h * dim + d];
          gathered[reads[c]] += p[c] / group;
          if (recent != nullptr) (*recent)[g][reads[c]] = p[c];
        }
        for (uint32_t d = 0; d < dim; ++d) {
          const auto got = static_cast<double>(out[at + d]);
          const double apart = std::fabs(got - expected[d]) / (1 + std::fabs(expected[d]));
          worst_ = std::isfinite(got) ? std::max(worst_, apart) : INFINITY;
        }
      }
      ++rows_checked_;
    }
  }
}

// Stores a token's entry: rounded to bf16, packed alone, unpacked. Keys arrive rotated, which is checked.
void WitnessCache::store(uint32_t layer, const float* k, const float* v, KvEntry* kv_entry) const {
  const uint32_t dim = llm_.head_dim, width = llm_.kv_heads * dim;
  const PageShape shape{1, dim, config_.policies.precision_spec.group};
  for (auto* of_layers :
       {&kv_entry->exact_keys, &kv_entry->exact_values, &kv_entry->stored_keys, &kv_entry->stored_values}) {
    of_layers->resize(llm_.layers);
    (*of_layers)[layer].clear();
  }
  for (uint32_t i = 0; i < width; ++i) {
    CHECK(kernels::from_bf16(kernels::to_bf16(k[i])) == k[i]);
    kv_entry->exact_keys[layer].push_back(static_cast<double>(k[i]));
    kv_entry->exact_values[layer].push_back(static_cast<double>(kernels::from_bf16(kernels::to_bf16(v[i]))));
  }
  std::vector<uint8_t> bytes(page_bytes(format_, shape));
  std::vector<float> key(dim), value(dim);
  for (uint32_t h = 0; h < llm_.kv_heads; ++h) {
    const auto at = kv_entry->exact_values[layer].begin() + h * dim;
    const std::vector<float> rounded(at, at + dim);
    kernels::pack_page(format_, shape, {k + h * dim, dim}, rounded, bytes);
    kernels::unpack_page(format_, shape, bytes, 1, key, value);
    kv_entry->stored_keys[layer].insert(kv_entry->stored_keys[layer].end(), key.begin(), key.end());
    kv_entry->stored_values[layer].insert(kv_entry->stored_values[layer].end(), value.begin(), value.end());
  }
}

// The key as a token of the entry reads it.
std::vector<double> WitnessCache::key_of(const KvEntry& kv_entry, const PlanEntry& entry, uint32_t position,
                                         uint32_t layer, uint32_t kv_head, uint32_t phase) const {
  const uint32_t dim = llm_.head_dim;
  const std::vector<double> exact = turned(kv_entry.keys[layer].data() + kv_head * dim, phase);
  if (format_ == Format::kBf16) return exact;
  const bool chunk = entry.kind == EntryKind::kChunk && position >= entry.context;
  const auto from = [&](const std::vector<double>& row) {
    return std::vector<double>(row.begin() + kv_head * dim, row.begin() + (kv_head + 1) * dim);
  };
  const std::vector<double> rounded = from(kv_entry.exact_keys[layer]);
  for (uint32_t d = 0; d < dim; ++d)
    CHECK(std::fabs(rounded[d] - exact[d]) <= std::fabs(exact[d]) / 256 + 1e-6);
  return chunk ? rounded : from(kv_entry.stored_keys[layer]);
}

// The entries that a head retains, page by page: of its table, or by position where slots are dropped in
// place.
std::vector<std::vector<uint32_t>> WitnessCache::pages_of(const std::vector<uint32_t>& readable) const {
  std::map<uint32_t, std::vector<uint32_t>> pages;
  for (uint32_t i = 0; i < readable.size(); ++i)
    pages[(dropped_slots() ? readable[i] : i) / page_tokens_].push_back(readable[i]);
  std::vector<std::vector<uint32_t>> out;
  for (const auto& [index, kv_entries] : pages) out.push_back(kv_entries);
  return out;
}

// docs/design/methods/freekv.md#page-scores, min-max and MeanS: the score of each page, from its keys before
// packing. Where slots are dropped in place, the dropped entries count too.
std::vector<double> WitnessCache::scores_of(Request* request, const std::vector<std::vector<uint32_t>>& pages,
                                            uint32_t layer, uint32_t kv_head, uint32_t position,
                                            const float* q) {
  const uint32_t dim = llm_.head_dim, group = llm_.query_heads / llm_.kv_heads;
  std::vector<double> pooled(pages.size());
  for (uint32_t g = 0; g < group; ++g) {
    const std::vector<double> dequantized(q + size_t{g} * dim, q + size_t{g + 1} * dim);
    const std::vector<double> query = turned(dequantized.data(), position);
    std::vector<double> u(pages.size());
    for (size_t page = 0; page < pages.size(); ++page) {
      std::vector<uint32_t> members = pages[page];
      if (dropped_slots()) {
        members.clear();
        for (uint32_t i = 0; i < page_tokens_; ++i)
          members.push_back(pages[page][0] / page_tokens_ * page_tokens_ + i);
      }
      std::vector<double> high(dim, -INFINITY), low(dim, INFINITY);
      for (const uint32_t p : members) {
        const KvEntry& from = kv_entry(request, p);
        std::vector<double> key = turned(from.keys[layer].data() + kv_head * dim, p);
        for (uint32_t d = 0; d < dim; ++d) {
          if (format_ != Format::kBf16) key[d] = from.exact_keys[layer][kv_head * dim + d];
          high[d] = std::max(high[d], key[d]), low[d] = std::min(low[d], key[d]);
        }
      }
      for (uint32_t d = 0; d < dim; ++d) u[page] += std::max(query[d] * high[d], query[d] * low[d]);
      u[page] /= std::sqrt(static_cast<double>(dim));
    }
    const double most = *std::max_element(u.begin(), u.end());
    double sum = 0;
    for (const double x : u) sum += std::exp(x - most);
    for (size_t page = 0; page < u.size(); ++page) pooled[page] += std::exp(u[page] - most) / sum / group;
  }
  return pooled;
}

// The positions that a decoded token reads: all, or the first pages, the last ones, and the best of the
// others.
std::vector<uint32_t> WitnessCache::check_choice(Request* request, const PlanEntry& entry, uint32_t layer,
                                                 uint32_t kv_head, const std::vector<uint32_t>& readable,
                                                 const float* q) {
  const RetrievalSpec& spec = config_.policies.retrieval_spec;
  std::vector<std::vector<uint32_t>> pages = pages_of(readable);
  const auto read_pages = choices_->reads.find({entry.request, kv_head});
  const bool chooses = layer >= spec.layers_dense && pages.size() > spec.budget_tokens / page_tokens_;
  CHECK(chooses == (read_pages != choices_->reads.end()));
  if (!chooses || read_pages == choices_->reads.end()) return readable;
  ++chose_;
  const uint32_t sinks = spec.sink_tokens / page_tokens_, window = spec.window_tokens / page_tokens_;
  const std::vector<std::vector<uint32_t>> candidates(pages.begin() + sinks, pages.end() - window);
  const std::vector<double> scores = scores_of(request, candidates, layer, kv_head, entry.context, q);
  std::set<uint32_t> read(read_pages->second.begin(), read_pages->second.end());
  CHECK(read.size() == read_pages->second.size());
  const auto take = [&](const std::vector<uint32_t>& kv_entries) {
    uint32_t taken = 0;
    for (const uint32_t p : kv_entries) taken += static_cast<uint32_t>(read.erase(p));
    CHECK((taken == 0 || taken == kv_entries.size()));  // whole pages
    return taken > 0;
  };
  for (size_t i = 0; i < sinks; ++i) CHECK(take(pages[i]));
  for (size_t i = pages.size() - window; i < pages.size(); ++i) CHECK(take(pages[i]));
  double least = INFINITY, most_left = -INFINITY;
  uint32_t chosen = 0;
  for (size_t i = 0; i < candidates.size(); ++i) {
    const bool taken = take(candidates[i]);
    chosen += taken ? 1 : 0;
    if (taken) least = std::min(least, scores[i]);
    if (!taken) most_left = std::max(most_left, scores[i]);
  }
  CHECK(read.empty());
  CHECK(chosen == selectable_pages(spec, page_tokens_));
  CHECK(least >= most_left - 1e-5);
  return read_pages->second;
}

void WitnessCache::end(const LaunchStep& launch, uint32_t offset, std::span<const PlanEntry> entries,
                       DataOutcomes* values) {
  cache_->end(launch, offset, entries, values);
  REQUIRE(values->retained.size() == launch.compressions.size());
  for (const PlanEntry& entry : entries_) {
    if (prompt_ended && entry.kind == EntryKind::kChunk && entry.samples)
      prompt_ended(entry.request, entry.context + entry.tokens);
  }
  for (size_t i = 0; i < launch.compressions.size(); ++i)
    check_retained(launch, launch.compressions[i], values->retained[i]);
  for (const PrefixCheckpoint& prefix_checkpoint : launch.prefix_checkpoints) {
    const Request& of = requests_[launch.entries[prefix_checkpoint.entry].request];
    Request& taken = prefix_checkpoints_[prefix_checkpoint.prefix_checkpoint];
    taken.kv_entries = of.kv_entries;
    taken.dropped_positions = of.dropped_positions;
  }
}

void WitnessCache::check_retained(const LaunchStep& launch, const Compression& c,
                                  const CompressionOutcome& retained) {
  const cpu::RequestTableShape& shape = cache_->shape();
  const PlanEntry& entry = launch.entries[c.entry];
  Request& request = requests_[entry.request];
  CHECK(retained.request == entry.request);
  CHECK(retained.counts.size() == (c.keep.empty() ? shape.groups.groups() : 0));
  ++compressions_;
  if (c.before) return check_retained_before(entry, c, retained);
  for (uint32_t head = 0; head < llm_.layers * llm_.kv_heads; ++head) {
    const std::span<const uint32_t> now = cache_->positions(entry.request, head);
    const std::vector<uint32_t> after(now.begin(), now.end());
    std::vector<uint32_t> before = before_[c.entry][head];
    for (uint32_t i = 0; i < entry.stored(); ++i) before.push_back(entry.context + i);
    CHECK(std::is_sorted(after.begin(), after.end()));
    CHECK(std::includes(before.begin(), before.end(), after.begin(), after.end()));
    uint32_t candidates = 0, stay = 0;
    for (const uint32_t p : before) {
      const bool forced = std::any_of(c.forced.begin(), c.forced.end(), [&](const Compression::Forced& f) {
        return p >= f.begin && p < f.end;
      });
      const bool left = std::binary_search(after.begin(), after.end(), p);
      if (p < c.begin || forced) {
        CHECK_MESSAGE(left, "position " << p << " had to stay");
        ++stay;
      } else {
        ++candidates;
      }
      if (!left) {
        request.dropped_positions[head].insert(p);
        ++dropped_;
      }
      if (!retained.live.empty()) CHECK(((retained.live[p / 64] >> (p % 64)) & 1) == (left ? 1u : 0u));
    }
    const uint32_t group = shape.groups.group_of(head);
    if (!c.keep.empty()) CHECK(after.size() == stay + std::min(candidates, c.keep[group]));
    if (c.keep.empty()) CHECK(after.size() == retained.counts[group]);
    if (shape.slot_retention == SlotRetention::kMove) {
      CHECK(after.size() <= uint64_t{request.tables[group]} * page_tokens_);  // T-2
      // T-1: the reservation is exact, so no page is freed.
      if (c.staged) CHECK(request.tables[group] == div_ceil<size_t>(after.size(), page_tokens_));
    }
    if (!judge) continue;
    const auto key = [&](uint32_t position) -> const std::vector<double>& {
      return kv_entry(&request, position).keys[head / llm_.kv_heads];
    };
    const auto rotated = [&](uint32_t position, uint32_t layer, uint32_t kv_head) {
      return turned(kv_entry(&request, position).keys[layer].data() + kv_head * llm_.head_dim, position);
    };
    judge({entry.request, head, c.end, &c, before, after, &request.recent, &request.gathered[head], key,
           rotated});
  }
  if (shape.slot_retention != SlotRetention::kMove) return;
  for (uint32_t g = 0; g < request.tables.size(); ++g) {
    const size_t kv_entries = cache_->positions(entry.request, shape.groups.members(g)[0]).size();
    request.tables[g] =
        std::min(request.tables[g], static_cast<uint32_t>(div_ceil<size_t>(kv_entries, page_tokens_)));
  }
}

// At the start of a turn: the turn's tokens read what it retained (before_), and the outcome agrees.
void WitnessCache::check_retained_before(const PlanEntry& entry, const Compression& c,
                                         const CompressionOutcome& retained) {
  CHECK(c.end == entry.context);
  const std::vector<uint32_t>& left = before_[c.entry][0];
  uint32_t forced = 0;
  for (const Compression::Forced& span : c.forced) forced += span.end - span.begin;
  CHECK(left.size() <= forced + c.keep[0]);
  for (uint32_t head = 0; head < llm_.layers * llm_.kv_heads; ++head) CHECK(before_[c.entry][head] == left);
  for (uint32_t p = 0; p < c.end; ++p) {
    const bool stays = std::binary_search(left.begin(), left.end(), p);
    CHECK(((retained.live[p / 64] >> (p % 64)) & 1) == (stays ? 1u : 0u));
    dropped_ += stays ? 0 : 1;
  }
}

void WitnessCache::notify(const Command& command) {
  cache_->notify(command);
  if (const auto* transfer = std::get_if<StartTransfer>(&command)) {
    for (size_t i = 0; i < transfer->source.size(); ++i) {
      for (uint32_t slot = 0; slot < page_tokens_; ++slot) {
        const auto from = slots_.find(uint64_t{raw(transfer->source[i])} * page_tokens_ + slot);
        if (from != slots_.end())
          slots_[uint64_t{raw(transfer->target[i])} * page_tokens_ + slot] = from->second;
      }
    }
  }
  const auto* drop = std::get_if<DropRequestState>(&command);
  if (drop != nullptr && drop->reason != DropRequestState::Reason::kPreempted) requests_.erase(drop->request);
}

}  // namespace kvtwin::testing
