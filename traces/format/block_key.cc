#include "traces/format/block_key.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace kvtwin {

void append_run(IdRuns* runs, const IdRun& run) {
  if (run.count == 0) return;
  if (!runs->empty()) {
    IdRun& last = runs->back();
    if (last.scope == run.scope && last.first + last.count == run.first &&
        last.count <= UINT32_MAX - run.count) {
      last.count += run.count;
      return;
    }
  }
  runs->push_back(run);
}

void append_id(IdRuns* runs, int64_t id, v1::Scope scope) { append_run(runs, {id, 1, scope}); }

uint64_t blocks_in(const IdRuns& runs) {
  uint64_t blocks = 0;
  for (const IdRun& run : runs) blocks += run.count;
  return blocks;
}

uint64_t common_blocks(const IdRuns& a, const IdRuns& b) {
  uint64_t common = 0;
  size_t i = 0, j = 0;
  uint32_t used_a = 0, used_b = 0;  // ids of a[i] and b[j] that were compared
  while (i < a.size() && j < b.size()) {
    if (a[i].scope != b[j].scope || a[i].first + used_a != b[j].first + used_b) break;
    const uint32_t step = std::min(a[i].count - used_a, b[j].count - used_b);
    common += step;
    used_a += step;
    used_b += step;
    if (used_a == a[i].count) ++i, used_a = 0;
    if (used_b == b[j].count) ++j, used_b = 0;
  }
  return common;
}

void encode_key(const IdRuns& runs, v1::Scope default_scope, v1::BlockKey* key) {
  key->Clear();
  key->set_default_scope(default_scope);
  const bool mixed =
      std::any_of(runs.begin(), runs.end(), [&](const IdRun& run) { return run.scope != default_scope; });
  int64_t end = 0;
  for (const IdRun& run : runs) {
    key->add_first_delta(run.first - end);
    key->add_count(run.count);
    if (mixed) key->add_scope(run.scope);
    end = run.first + run.count;
  }
}

Result<IdRuns> decode_key(const v1::BlockKey& key) {
  const int runs = key.first_delta_size();
  if (key.count_size() != runs || (key.scope_size() != 0 && key.scope_size() != runs)) {
    return make_error("",
                      fmt::format("prompt_key has {} first ids, {} counts and {} scopes", runs,
                                  key.count_size(), key.scope_size()),
                      "one count per first id, and as many scopes or none");
  }
  IdRuns out;
  out.reserve(static_cast<size_t>(runs));
  int64_t end = 0;
  for (int i = 0; i < runs; ++i) {
    const int64_t delta = key.first_delta(i);
    if (delta > kBlockIdMax || delta < -kBlockIdMax) {
      return make_error("", fmt::format("prompt_key run {} jumps by {}", i, delta),
                        "block ids are below 2^61");
    }
    const IdRun run{end + delta, key.count(i), key.scope_size() == 0 ? key.default_scope() : key.scope(i)};
    if (run.first < 0 || run.first > kBlockIdMax || run.count == 0) {
      return make_error("", fmt::format("prompt_key run {} has {} ids from {}", i, run.count, run.first),
                        "at least one id, from 0 to 2^61");
    }
    out.push_back(run);
    end = run.first + run.count;
  }
  return out;
}

Result<void> list_ids(const IdRuns& runs, std::string_view separator, std::string* out) {
  if (blocks_in(runs) > kIdsListedMax) {
    return make_error("", fmt::format("a prompt of {} block ids", blocks_in(runs)),
                      fmt::format("at most {} can be written out", kIdsListedMax));
  }
  bool first = true;
  for (const IdRun& run : runs) {
    for (uint32_t k = 0; k < run.count; ++k) {
      if (!first) out->append(separator);
      first = false;
      fmt::format_to(std::back_inserter(*out), "{}", run.first + k);
    }
  }
  return {};
}

uint64_t IdSet::insert(int64_t first, uint32_t count) {
  if (count == 0) return 0;
  int64_t begin = first, end = first + count;
  uint64_t covered = 0;
  auto it = end_of_.upper_bound(begin);
  if (it != end_of_.begin() && std::prev(it)->second >= begin) --it;
  while (it != end_of_.end() && it->first <= end) {
    const int64_t overlap = std::min(it->second, first + count) - std::max(it->first, first);
    if (overlap > 0) covered += static_cast<uint64_t>(overlap);
    begin = std::min(begin, it->first);
    end = std::max(end, it->second);
    it = end_of_.erase(it);
  }
  end_of_.emplace(begin, end);
  const uint64_t added = count - covered;
  size_ += added;
  return added;
}

}  // namespace kvtwin
