// What the rows of a step are, to a FactoredCache.

#include <algorithm>

#include "engine/base/check.h"
#include "engine/cuda/device/cuda_check.h"
#include "engine/cuda/retrieval/factored_cache.h"

namespace kvtwin::cuda {

FactoredCache::Request& FactoredCache::new_request(RequestId id) {
  const auto take = [](std::vector<uint32_t>* free, uint32_t* count) {
    if (free->empty()) return (*count)++;
    const uint32_t out = free->back();
    free->pop_back();
    return out;
  };
  const auto found = requests_.find(id);
  const uint32_t state = found != requests_.end() ? found->second.state : take(&free_states_, &states_);
  if (found != requests_.end())
    free_factors_.insert(free_factors_.end(), found->second.factors.begin(), found->second.factors.end());
  Request request;
  request.state = state;
  request.layers.resize(llm_.layers);
  for (uint32_t l = spec_.layers_dense; l < llm_.layers; ++l) {
    if (shadow()) {
      request.layers[l].shadow =
          std::make_unique<cpu::ShadowKeys>(llm_, spec_.rank, spec_.window_tokens, unit_directions_);
    } else {
      request.layers[l].partial =
          std::make_unique<cpu::PartialKeys>(llm_, spec_.columns_q32, unit_directions_);
    }
  }
  return requests_[id] = std::move(request);
}

// `host_copy`: its next host page, which has factors.
void FactoredCache::add_page(Request* request, uint32_t host_copy) {
  KVT_CHECK(host_copy >= memory_.pages_gpu);
  if (free_factors_.empty()) {
    request->factors.push_back(factors_++);
    return;
  }
  request->factors.push_back(free_factors_.back());
  free_factors_.pop_back();
}

void FactoredCache::take_pages(const LaunchStep& launch, uint32_t offset, cudaStream_t stream) {
  const auto whole = [&](uint32_t page) { return kernels::ReadRun{page, 0, memory_.page_tokens}; };
  if (offset == 0) {
    for (const PlanEntry& entry : launch.entries) {
      if (entry.first) new_request(entry.request);
    }
    for (const PrefixHit& prefix_hit : launch.prefix_hits) begin_with(prefix_hit);
  }
  for (const PageAllocation& allocation : launch.allocations) {
    if (allocation.offset != offset) continue;
    Request& request = requests_.at(launch.entries[allocation.entry].request);
    const uint32_t page = raw(allocation.page);
    if (page < memory_.pages_gpu) {
      if (memory_.poison) pages_.poison(allocation.page, stream);
      request.pages.push_back(whole(page));
      continue;
    }
    request.host_copies.push_back(page);
    add_page(&request, page);
    prefix_rows_.forget(page);
    if (spec_.layers_dense == 0) continue;
    const uint32_t number = page - memory_.pages_gpu;
    if (memory_.poison) resident_.poison(PageId{number}, stream);
    request.resident.push_back(whole(number));
  }
}

void FactoredCache::begin_with(const PrefixHit& prefix_hit) {
  KVT_CHECK(prefix_cache_);
  Request& request = requests_.at(prefix_hit.request);
  request.begin_with(cpu::resident_prefix(prefix_hit, memory_.pages_gpu), memory_.pages_gpu,
                     memory_.page_tokens, spec_.layers_dense > 0);
  for (const uint32_t host_copy : request.host_copies) add_page(&request, host_copy);
  request.add_factors(prefix_rows_, spec_.layers_dense, memory_.page_tokens);
}

void FactoredCache::add_entry(const PlanEntry& entry, StepRows* rows) {
  KVT_CHECK(entry.kind == EntryKind::kChunk || entry.kind == EntryKind::kDecode);
  Request& request = requests_.at(entry.request);
  // A request keeps all its pages on the GPU until the step that completes its prompt has ended.
  KVT_CHECK(!request.in_resident || entry.tokens == 1);
  const uint32_t page_tokens = memory_.page_tokens, end = entry.context + entry.tokens;
  const bool chooses = request.in_resident && request_retrieves(spec_, page_tokens, end);
  const auto first = static_cast<uint32_t>(rows->positions.size());
  for (uint32_t position = entry.context; position < end; ++position) {
    const uint32_t number = position / page_tokens;
    const uint32_t page = request.pages.at(request.in_resident ? shape_.slot_of(number) : number).page;
    rows->positions.push_back(position);
    rows->slots.push_back({page * llm_.kv_heads, position % page_tokens});
    rows_.push_back({entry.request, &request, position, chooses});
    if ((position + 1) % page_tokens == 0) sealed_.push_back({page, request.host_copies.at(number)});
  }
  retained_.push_back({first + entry.tokens - 1, request.state});
  if (spec_.layers_dense > 0) {
    std::vector<uint32_t> pages;
    for (const kernels::ReadRun& page : request.resident) pages.push_back(page.page);
    dense_.add(pages, entry.context, entry.tokens, 0);
  }
  if (chooses) return add_slots(request, first, entry.context, rows);
  const auto table = static_cast<uint32_t>(rows->pages.size());
  for (uint32_t page = 0; page < pages_of(end); ++page) rows->pages.push_back(request.pages.at(page).page);
  attention_.add(first, table, entry.context, entry.tokens, rows);
}

// ShadowKV: all slots of the resident pages, the same for all heads; their content differs by head. The
// window comes last, because its last page may be partly filled. (InfiniGen: add_reads().)
void FactoredCache::add_slots(const Request& request, uint32_t row, uint32_t position, StepRows* rows) {
  if (!shadow()) return;
  const uint32_t pages = pages_of(position + 1), page_tokens = memory_.page_tokens;
  const auto table = static_cast<uint32_t>(rows->pages.size());
  for (uint32_t slot = 0; slot < shape_.slots - shape_.window; ++slot)
    rows->pages.push_back(request.pages.at(slot).page);
  for (uint32_t page = pages - shape_.window; page < pages; ++page)
    rows->pages.push_back(request.pages.at(shape_.slot_of(page)).page);
  attention_.add(row, table, (shape_.slots - 1) * page_tokens + position % page_tokens, 1, rows);
}

uint32_t FactoredCache::add_list(std::span<const uint32_t> list) {
  const auto at = static_cast<uint32_t>(lists_.size());
  lists_.insert(lists_.end(), list.begin(), list.end());
  return at;
}

// Among the full pages outside of sinks and window; the request's own query row is not set.
ChoiceRow FactoredCache::choice_of(const Request& request, uint32_t pages) {
  ChoiceRow out;
  out.state = request.state;
  out.candidates = end_candidates(pages) - shape_.sinks;
  KVT_CHECK(out.candidates >= shape_.selectable + shape_.extra);
  out.owners = add_list(std::span(request.host_copies).subspan(shape_.sinks, out.candidates));
  std::vector<uint32_t> slots;
  for (uint32_t i = 0; i < shape_.selectable; ++i) slots.push_back(request.pages.at(shape_.sinks + i).page);
  out.slots = add_list(slots);
  out.table = static_cast<uint32_t>(choice_rows_.size()) * llm_.kv_heads * shape_.selectable;
  out.table_stride = shape_.selectable;
  return out;
}

void FactoredCache::add_choices() {
  choice_rows_.clear(), rebuild_rows_.clear();
  uint32_t most = 0;
  for (uint32_t r = 0; shadow() && r < rows_.size(); ++r) {
    const Request& request = *rows_[r].request;
    if (!rows_[r].chooses) continue;
    ChoiceRow choice = choice_of(request, pages_of(rows_[r].position + 1));
    choice.row = r, choice.held = Held::kUnsure;
    most = std::max(most, choice.candidates);
    rebuild_rows_.push_back({request.state,
                             add_list(std::span(request.factors).subspan(shape_.sinks, choice.candidates)),
                             choice.slots, shape_.sinks});
    choice_rows_.push_back(choice);
  }
  if (shadow()) choices_.reserve_rows(static_cast<uint32_t>(choice_rows_.size()), most);
}

// Rows whose partial keys the device adds, and rows that choose tokens.
void FactoredCache::add_tokens() {
  token_rows_.clear(), query_rows_.clear(), key_rows_.clear(), reads_.clear(), kv_entries_.clear();
  const uint32_t page_tokens = memory_.page_tokens;
  uint32_t most = 0;
  for (uint32_t r = 0; !shadow() && r < rows_.size(); ++r) {
    const Row& row = rows_[r];
    const Request& request = *row.request;
    if (!request.in_resident) continue;
    key_rows_.push_back(
        {r, request.state, row.position,
         request.factors.at(row.position / page_tokens) * page_tokens + row.position % page_tokens});
    if (!row.chooses) continue;
    const uint32_t pages = pages_of(row.position + 1), window = end_candidates(pages);
    const auto index = static_cast<uint32_t>(token_rows_.size());
    query_rows_.push_back({r, request.state, row.position, index});
    TokenRow& token = token_rows_.emplace_back();
    token.first = shape_.sinks * page_tokens, token.candidates = (window - shape_.sinks) * page_tokens;
    token.before = token.first, token.after = row.position + 1 - window * page_tokens;
    token.partial = add_list(std::span(request.factors).first(window));
    token.host_copies = add_list(std::span(request.host_copies).first(window));
    std::vector<uint32_t> slots;
    for (uint32_t i = 0; i < shape_.selectable; ++i) slots.push_back(request.pages.at(shape_.sinks + i).page);
    token.slots = add_list(slots);
    most = std::max(most, token.candidates);
    add_reads(row, r, static_cast<uint32_t>(kv_entries_.size()));
  }
  if (token_rows_.empty()) return;
  const uint64_t rows = token_rows_.size(), tokens = uint64_t{shape_.selectable} * page_tokens;
  token_stride_ = std::max(token_stride_, most);
  grow(&partial_queries_, Buffer::Kind::kDevice, rows * llm_.query_heads * columns_ * sizeof(float),
       "partial queries");
  grow(&token_scores_, Buffer::Kind::kDevice, rows * llm_.query_heads * token_stride_ * sizeof(float),
       "scores of tokens");
  grow(&near_, Buffer::Kind::kDevice, rows * sizeof(uint32_t), "numbers of tokens");
  // Two layers' at a time: one layer's tokens are recalled while those of the next are chosen.
  grow(&chosen_, Buffer::Kind::kDevice, 2 * rows * llm_.kv_heads * tokens * sizeof(uint32_t),
       "chosen tokens");
  grow(&numbers_, Buffer::Kind::kDevice, rows * choosers() * sizeof(uint32_t), "numbers of tokens");
  grow(&numbers_host_, Buffer::Kind::kPinned, rows * choosers() * sizeof(uint32_t), "numbers of tokens");
}

// Sinks, all slots of chosen tokens, and the window, as KV entries: those that a head reads end inside pages,
// and it skips the slots that it does not use.
void FactoredCache::add_reads(const Row& row, uint32_t index, uint32_t table) {
  const uint32_t page_tokens = memory_.page_tokens, end = row.position + 1, pages = pages_of(end);
  const auto add = [&](uint32_t slot, uint32_t count) {
    const uint32_t first = row.request->pages.at(slot).page * page_tokens;
    for (uint32_t i = 0; i < count; ++i) kv_entries_.push_back(first + i);
  };
  for (uint32_t slot = 0; slot < shape_.sinks + shape_.selectable; ++slot) add(slot, page_tokens);
  for (uint32_t page = end_candidates(pages); page < pages; ++page)
    add(shape_.slot_of(page), std::min(page_tokens, end - page * page_tokens));
  for (uint32_t head = 0; head < llm_.kv_heads; ++head) reads_.push_back({index, table, 0, head, head});
}

void FactoredCache::send_lists(const StepStream& on) {
  lists_.clear();
  add_choices();
  add_tokens();
  std::vector<SummaryPage> summaries;
  for (const Sealed& page : sealed_) {
    for (uint32_t head = 0; shadow() && head < llm_.kv_heads; ++head)
      summaries.push_back(
          {page.page * llm_.kv_heads + head, memory_.page_tokens, page.owner * llm_.kv_heads + head});
  }
  upload_.clear();
  at_.lists = upload_.add(lists_);
  at_.retained = upload_.add(retained_);
  at_.summaries = upload_.add(summaries);
  at_.choices = upload_.add(choice_rows_);
  at_.rebuilt = upload_.add(rebuild_rows_);
  at_.tokens = upload_.add(token_rows_);
  at_.queries = upload_.add(query_rows_);
  at_.keys = upload_.add(key_rows_);
  for (ListAt<QueryRow>& reads : at_.reads) reads = upload_.add(reads_);
  at_.kv_entries = upload_.add(kv_entries_);
  on.timer->begin(Operation::kUpload);
  upload_.send(on.stream);
  if (spec_.layers_dense > 0) dense_.send(on);
  if (!rows_needed()) return;
  const uint64_t regions = at_once_ ? 1 : choosers();
  grow(&fetched_, Buffer::Kind::kPinned,
       regions * rows_.size() * (q_width() + kv_width()) * sizeof(__nv_bfloat16), "rows on the host");
}

}  // namespace kvtwin::cuda
