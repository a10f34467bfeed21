#include "sim/behaviour_retention.h"

#include <algorithm>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/prng.h"
#include "engine/policy/budget_groups.h"

namespace kvtwin::sim {
namespace {

enum Purpose : uint64_t { kDeviation = 0x6b657074, kPosition, kContext };

// Nearly normal: twelve uniform draws of 32 bits, less their mean. In units of 1 / kWhole.
int64_t normal(uint64_t bits) {
  int64_t sum = 0;
  for (uint64_t i = 0; i < 12; ++i) sum += static_cast<int64_t>(draw({bits, i}) >> 32);
  return sum - 6 * static_cast<int64_t>(kWhole);
}

Share clipped(__int128 share) { return static_cast<Share>(std::clamp<__int128>(share, 0, __int128{kWhole})); }

bool is_forced(const Compression& c, uint32_t position) {
  return std::any_of(c.forced.begin(), c.forced.end(),
                     [&](const Compression::Forced& f) { return position >= f.begin && position < f.end; });
}

}  // namespace

RetentionSource::RetentionSource(const CoreConfig& config, KeptModel model, uint64_t seed,
                                 std::vector<Share> contexts)
    : engine_(raw(config.engine)),
      spec_(config.policies.budget_spec),
      released_(config.policies.budget == "released"),
      absolute_(config.policies.budget == "ada"),
      holes_(config.policies.layout == "slot_dead" || config.policies.layout == "page_mask_dead"),
      model_(model),
      contexts_(std::move(contexts)),
      page_tokens_(config.page_tokens),
      seed_(seed),
      groups_(make_groups(config.policies)) {
  KVT_CHECK(model != KeptModel::kProfile || spec_.mu.size() == groups_.heads());
  KVT_CHECK(model != KeptModel::kContexts || !contexts_.empty());
  KVT_CHECK(contexts_.size() % groups_.heads() == 0);
}

void RetentionSource::step(const LaunchStep& launch, uint32_t offset, StepValues* values) {
  values->clear();
  if (offset > 0) return;
  for (const PlanEntry& entry : launch.entries) {
    Call& call = calls_[entry.call];
    // Pages that a stretch was given ahead may have gone back when it was cut short.
    if (holes_) call.pages.resize(std::min<size_t>(call.pages.size(), div_ceil(entry.context, page_tokens_)));
    if (!entry.first) continue;
    call.key = entry.key;
    ++call.attempt;
    call.gone.assign(groups_.groups(), 0);
    call.pages.clear();
    call.dead.clear();
  }
  for (const Adoption& adoption : launch.adoptions) continue_from(launch, adoption);
  if (holes_) {
    for (const Adoption& adoption : launch.adoptions) adopt(adoption, &calls_[adoption.call]);
    for (const PageGrant& grant : launch.grants) {
      page_dead_.erase(grant.page);
      calls_[launch.entries[grant.entry].call].pages.push_back(grant.page);
    }
  }
  std::vector<uint32_t> counts;
  std::vector<uint64_t> live;
  for (const Compression& c : launch.compressions) {
    const CallId id = launch.entries[c.entry].call;
    counts.clear();
    live.clear();
    if (holes_) {
      choose(c, &calls_[id], &live);
    } else if (c.keep.empty()) {
      count(c, &calls_[id], &counts);
    }
    values->kept_counts.insert(values->kept_counts.end(), counts.begin(), counts.end());
    values->kept_live.insert(values->kept_live.end(), live.begin(), live.end());
    values->end_kept(id);
  }
  values->link_kept();
}

// Behind a snapshot a call has what the snapshot has.
void RetentionSource::continue_from(const LaunchStep& launch, const Adoption& adoption) {
  if (adoption.cells.empty()) return;
  const auto entry = std::find_if(launch.entries.begin(), launch.entries.end(),
                                  [&](const PlanEntry& e) { return e.call == adoption.call; });
  KVT_CHECK(entry != launch.entries.end());
  Call& call = calls_[adoption.call];
  for (uint32_t g = 0; g < groups_.groups(); ++g) call.gone[g] = entry->context - adoption.cells[g];
}

void RetentionSource::told(const Command& command) {
  const auto* drop = std::get_if<DropCallState>(&command);
  if (drop == nullptr || raw(drop->engine) != engine_) return;
  // A preempted call starts its next attempt where this one ended.
  if (drop->reason != DropCallState::Reason::kPreempted) calls_.erase(drop->call);
}

uint64_t RetentionSource::drawn(const Call& call, std::initializer_list<uint64_t> of) const {
  return draw({draw({seed_, raw(call.key.session), call.key.index}), draw(of)});
}

// The part of what is ranked that `head` keeps. Shares are of what all heads keep on average, `fixed`: the
// window is in the ratio, but not in them.
Share RetentionSource::share_of(uint32_t head, const Call& call, uint32_t end, Share fixed) const {
  if (model_ == KeptModel::kFixed) return fixed;
  __int128 share = 0;
  if (model_ == KeptModel::kContexts) {
    // The same context for all chunks of a call, and for its next attempt.
    const uint64_t context = drawn(call, {kContext}) % (contexts_.size() / groups_.heads());
    share = contexts_[context * groups_.heads() + head];
  } else {
    const int64_t z = normal(drawn(call, {kDeviation, call.attempt, head, end}));
    share = __int128{spec_.mu[head]} + ((__int128{z} * static_cast<int64_t>(spec_.sigma[head])) >> 32);
  }
  return clipped(spec_.shares ? (share * static_cast<int64_t>(fixed)) >> 32 : share);
}

uint32_t RetentionSource::kept_of_group(uint32_t group, const Call& call, uint32_t end,
                                        uint32_t candidates) const {
  // The window counts as kept: the rest keeps less than the ratio (METHODS 2.4, r_adj).
  const uint64_t ranked = end > spec_.sinks ? end - spec_.sinks : 0;
  Share fixed = 0;
  if (absolute_) {
    const uint64_t room = ranked_cells(spec_);
    fixed = candidates == 0 ? kWhole : std::min<Share>(kWhole, (room << 32) / candidates);
  } else if (ranked <= spec_.window || spec_.ratio == kWhole) {
    fixed = kWhole;
  } else {
    const __int128 kept =
        __int128{spec_.ratio} * static_cast<int64_t>(ranked) - (__int128{spec_.window} << 32);
    fixed = clipped(kept / static_cast<int64_t>(ranked - spec_.window));
  }
  Share share = 0;
  for (const uint32_t head : groups_.members(group)) {
    share = std::max(share, share_of(head, call, end, fixed));
  }
  uint32_t kept = part_up(share, candidates);
  if (released_) {
    const uint32_t had = end - call.gone[group] - candidates;  // forced and locked ones
    const uint32_t least = std::min(spec_.kept_min, end);
    if (had + kept < least) kept = least - had;
    kept = div_ceil(kept, page_tokens_) * page_tokens_;
  }
  return std::min(kept, candidates);
}

void RetentionSource::count(const Compression& c, Call* call, std::vector<uint32_t>* counts) const {
  uint32_t forced = 0;
  for (const Compression::Forced& f : c.forced) forced += f.end - f.begin;
  const bool chunked = c.begin > 0;
  for (uint32_t group = 0; group < groups_.groups(); ++group) {
    const uint32_t held = c.end - call->gone[group];
    // Cells before c.begin are locked; behind it nothing has been dropped yet where chunks are compressed.
    const uint32_t candidates = (chunked ? c.end - c.begin : held) - forced;
    const uint32_t kept = kept_of_group(group, *call, c.end, candidates);
    const uint32_t left = held - candidates + kept;
    call->gone[group] = c.end - left;
    counts->push_back(left);
  }
}

void RetentionSource::adopt(const Adoption& adoption, Call* call) const {
  call->pages.assign(adoption.pages.begin(), adoption.pages.end());
  for (const PageId page : call->pages) {
    const auto dead = page_dead_.find(page);
    for (uint32_t slot = 0; slot < page_tokens_; ++slot) {
      call->dead.push_back(page == kNoPage || (dead != page_dead_.end() && dead->second[slot]));
    }
  }
}

void RetentionSource::choose(const Compression& c, Call* call, std::vector<uint64_t>* live) {
  KVT_CHECK(c.begin == 0 && c.keep.size() == 1);
  call->dead.resize(c.end, false);
  live->assign(div_ceil(c.end, 64u), 0);
  std::vector<std::pair<uint64_t, uint32_t>> candidates;
  for (uint32_t position = 0; position < c.end; ++position) {
    if (call->dead[position]) continue;
    if (is_forced(c, position)) {
      (*live)[position / 64] |= uint64_t{1} << (position % 64);
    } else {
      candidates.emplace_back(drawn(*call, {kPosition, call->attempt, position, c.end}), position);
    }
  }
  const size_t keep = std::min<size_t>(c.keep[0], candidates.size());
  std::nth_element(candidates.begin(), candidates.begin() + static_cast<ptrdiff_t>(keep), candidates.end());
  for (size_t i = 0; i < candidates.size(); ++i) {
    const uint32_t position = candidates[i].second;
    if (i < keep) {
      (*live)[position / 64] |= uint64_t{1} << (position % 64);
      continue;
    }
    call->dead[position] = true;
    const PageId page = call->pages.at(position / page_tokens_);
    std::vector<bool>& of_page = page_dead_[page];
    of_page.resize(page_tokens_, false);
    of_page[position % page_tokens_] = true;
  }
}

}  // namespace kvtwin::sim
