#include "sim/behaviour/behaviour_retention.h"

#include <algorithm>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/prng.h"
#include "engine/methods/budget_groups.h"

namespace kvtwin::sim {
namespace {

enum Purpose : uint64_t { kDeviation = 0x6b657074, kPosition, kContext };

// Nearly normal, in units of 1 / kWhole: the sum of twelve uniform draws of 32 bits, less their mean.
int64_t normal(uint64_t bits) {
  int64_t sum = 0;
  for (uint64_t i = 0; i < 12; ++i) sum += static_cast<int64_t>(draw({bits, i}) >> 32);
  return sum - 6 * static_cast<int64_t>(kWhole);
}

Fraction clipped(__int128 fraction) {
  return static_cast<Fraction>(std::clamp<__int128>(fraction, 0, __int128{kWhole}));
}

bool is_forced(const Compression& c, uint32_t position) {
  return std::any_of(c.forced.begin(), c.forced.end(),
                     [&](const Compression::Forced& f) { return position >= f.begin && position < f.end; });
}

}  // namespace

RetentionSource::RetentionSource(const CoreConfig& config, RetentionModel model, uint64_t seed,
                                 std::vector<Fraction> contexts)
    : engine_(raw(config.engine)),
      spec_(config.policies.budget_spec),
      rule_(config.policies, config.page_tokens),
      dropped_slots_(layout_traits(config.policies.layout).slot_retention == SlotRetention::kInPlace),
      model_(model),
      contexts_(std::move(contexts)),
      page_tokens_(config.page_tokens),
      seed_(seed),
      groups_(make_groups(config.policies)) {
  KVT_CHECK(model != RetentionModel::kProfile || spec_.mu.size() == groups_.heads());
  KVT_CHECK(model != RetentionModel::kContexts || !contexts_.empty());
  KVT_CHECK(contexts_.size() % groups_.heads() == 0);
}

void RetentionSource::step(const LaunchStep& launch, uint32_t offset, DataOutcomes* values) {
  values->clear();
  if (offset > 0) return;
  for (const PlanEntry& entry : launch.entries) {
    Request& request = requests_[entry.request];
    // Pages that coalesced steps allocated ahead may have been rolled back after an interruption.
    if (dropped_slots_)
      request.pages.resize(std::min<size_t>(request.pages.size(), div_ceil(entry.context, page_tokens_)));
    if (!entry.first || entry.swapped_in) continue;
    request.key = entry.key;
    ++request.attempt;
    request.dropped.assign(groups_.groups(), 0);
    request.pages.clear();
    request.dropped_tokens.clear();
  }
  for (const PrefixHit& prefix_hit : launch.prefix_hits) begin_with(launch, prefix_hit);
  if (dropped_slots_) {
    for (const PageAllocation& allocation : launch.allocations) {
      page_dropped_.erase(allocation.page);
      requests_[launch.entries[allocation.entry].request].pages.push_back(allocation.page);
    }
  }
  std::vector<uint32_t> counts;
  std::vector<uint64_t> live;
  for (const Compression& c : launch.compressions) {
    const RequestId id = launch.entries[c.entry].request;
    counts.clear();
    live.clear();
    if (dropped_slots_) {
      choose(c, &requests_[id], &live);
    } else if (c.keep.empty()) {
      count(c, &requests_[id], &counts);
    }
    values->retained_counts.insert(values->retained_counts.end(), counts.begin(), counts.end());
    values->retained_live.insert(values->retained_live.end(), live.begin(), live.end());
    values->end_retained(id);
  }
  values->link_retained();
}

void RetentionSource::begin_with(const LaunchStep& launch, const PrefixHit& prefix_hit) {
  const auto entry = std::find_if(launch.entries.begin(), launch.entries.end(),
                                  [&](const PlanEntry& e) { return e.request == prefix_hit.request; });
  KVT_CHECK(entry != launch.entries.end());
  Request& request = requests_[prefix_hit.request];
  if (!prefix_hit.kv_entries.empty()) {
    // A request that continues from a prefix checkpoint has the entries of that checkpoint.
    for (uint32_t g = 0; g < groups_.groups(); ++g)
      request.dropped[g] = entry->context - prefix_hit.kv_entries[g];
  } else if (dropped_slots_) {
    entry->swapped_in ? move_to(prefix_hit.pages, &request) : reuse(prefix_hit, &request);
  }
}

// The request's dropped slots are in other pages now.
void RetentionSource::move_to(std::span<const PageId> pages, Request* request) {
  request->pages.assign(pages.begin(), pages.end());
  for (const PageId page : pages) page_dropped_.erase(page);
  for (size_t position = 0; position < request->dropped_tokens.size(); ++position) {
    const PageId page = pages[position / page_tokens_];
    if (page == kNoPage || !request->dropped_tokens[position]) continue;
    std::vector<bool>& of_page = page_dropped_[page];
    of_page.resize(page_tokens_);
    of_page[position % page_tokens_] = true;
  }
}

void RetentionSource::notify(const Command& command) {
  const auto* drop = std::get_if<DropRequestState>(&command);
  if (drop == nullptr || raw(drop->engine) != engine_) return;
  // The next attempt of a preempted request starts where this one ended.
  if (drop->reason != DropRequestState::Reason::kPreempted) requests_.erase(drop->request);
}

uint64_t RetentionSource::drawn(const Request& request, std::initializer_list<uint64_t> of) const {
  return draw({draw({seed_, raw(request.key.session), request.key.index}), draw(of)});
}

// The fraction of the ranked tokens that `head` retains. `fixed` is the mean over all heads; the calibrated
// fractions are relative to it, because the ratio includes the window and they do not.
Fraction RetentionSource::fraction_of(uint32_t head, const Request& request, uint32_t end,
                                      Fraction fixed) const {
  if (model_ == RetentionModel::kFixed) return fixed;
  __int128 fraction = 0;
  if (model_ == RetentionModel::kContexts) {
    // One context for all chunks of a request and for all its attempts.
    const uint64_t context = drawn(request, {kContext}) % (contexts_.size() / groups_.heads());
    fraction = contexts_[context * groups_.heads() + head];
  } else {
    const int64_t z = normal(drawn(request, {kDeviation, request.attempt, head, end}));
    fraction = __int128{spec_.mu[head]} + ((__int128{z} * static_cast<int64_t>(spec_.sigma[head])) >> 32);
  }
  return clipped(spec_.relative ? (fraction * static_cast<int64_t>(fixed)) >> 32 : fraction);
}

void RetentionSource::count(const Compression& c, Request* request, std::vector<uint32_t>* counts) const {
  uint32_t forced = 0;
  for (const Compression::Forced& f : c.forced) forced += f.end - f.begin;
  const bool chunked = c.begin > 0;
  std::vector<CountRule::Ranked> ranked;
  std::vector<GroupEntries> groups;
  for (uint32_t group = 0; group < groups_.groups(); ++group) {
    const uint32_t held = c.end - request->dropped[group];
    // Entries before c.begin are locked. With compressions at chunk ends, no later entry has been dropped
    // yet.
    const uint32_t candidates = (chunked ? c.end - c.begin : held) - forced;
    const Fraction fixed = rule_.fraction(candidates, c.end);
    groups.push_back({c.end, held - candidates, candidates});
    for (const uint32_t head : groups_.members(group)) {
      const Fraction fraction = fraction_of(head, *request, c.end, fixed);
      ranked.push_back({group, static_cast<uint32_t>(part_up(fraction, candidates))});
    }
  }
  const std::vector<uint32_t> retained = rule_.finish(ranked, groups);
  for (uint32_t group = 0; group < groups_.groups(); ++group) {
    counts->push_back(groups[group].fixed + retained[group]);
    request->dropped[group] = c.end - counts->back();
  }
}

void RetentionSource::reuse(const PrefixHit& prefix_hit, Request* request) const {
  request->pages.assign(prefix_hit.pages.begin(), prefix_hit.pages.end());
  for (const PageId page : request->pages) {
    const auto dropped_tokens = page_dropped_.find(page);
    for (uint32_t slot = 0; slot < page_tokens_; ++slot) {
      request->dropped_tokens.push_back(
          page == kNoPage || (dropped_tokens != page_dropped_.end() && dropped_tokens->second[slot]));
    }
  }
}

void RetentionSource::choose(const Compression& c, Request* request, std::vector<uint64_t>* live) {
  KVT_CHECK(c.begin == 0 && c.keep.size() == 1);
  request->dropped_tokens.resize(c.end, false);
  std::vector<uint32_t> positions, rows;
  std::vector<std::pair<uint64_t, uint32_t>> candidates;
  for (uint32_t position = 0; position < c.end; ++position) {
    if (request->dropped_tokens[position]) continue;
    const auto row = static_cast<uint32_t>(positions.size());
    positions.push_back(position);
    if (is_forced(c, position)) {
      rows.push_back(row);
    } else {
      candidates.emplace_back(drawn(*request, {kPosition, request->attempt, position, c.end}), row);
    }
  }
  const size_t keep = std::min<size_t>(c.keep[0], candidates.size());
  std::nth_element(candidates.begin(), candidates.begin() + static_cast<ptrdiff_t>(keep), candidates.end());
  for (size_t i = 0; i < keep; ++i) rows.push_back(candidates[i].second);
  std::sort(rows.begin(), rows.end());
  retain_tokens(positions, rows, c.end, live, [&](uint32_t row) {
    const uint32_t position = positions[row];
    request->dropped_tokens[position] = true;
    std::vector<bool>& of_page = page_dropped_[request->pages.at(position / page_tokens_)];
    of_page.resize(page_tokens_, false);
    of_page[position % page_tokens_] = true;
  });
}

}  // namespace kvtwin::sim
