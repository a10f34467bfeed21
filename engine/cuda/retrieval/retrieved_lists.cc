// What the rows of a step are, to a RetrievedCache: which slots they write, which they read, and what they
// choose among.

#include <algorithm>

#include "engine/base/check.h"
#include "engine/common/forced_outcome.h"
#include "engine/cuda/retrieval/retrieved_cache.h"
#include "engine/methods/outcome_rules.h"

namespace kvtwin::cuda {

RetrievedCache::Request& RetrievedCache::new_request(RequestId id) {
  const auto found = requests_.find(id);
  uint32_t state = 0;
  if (found != requests_.end()) {
    state = found->second.state;
  } else if (offloaded_ && !free_states_.empty()) {
    state = free_states_.back();
    free_states_.pop_back();
  } else if (offloaded_) {
    state = states_++;
  }
  Request& request = requests_[id];
  free_tables(&request);
  request = {};
  request.state = state;
  return request;
}

void RetrievedCache::take_pages(const LaunchStep& launch, uint32_t offset, cudaStream_t stream) {
  if (offset == 0) {
    for (const PlanEntry& entry : launch.entries) {
      if (entry.first) new_request(entry.request);
    }
    for (const PrefixHit& prefix_hit : launch.prefix_hits) {
      if (offloaded_) {
        begin_with(prefix_hit);
        continue;
      }
      for (const PageId page : prefix_hit.pages) requests_.at(prefix_hit.request).pages.push_back(raw(page));
    }
  }
  for (const PageAllocation& allocation : launch.allocations) {
    if (allocation.offset != offset) continue;
    Request& request = requests_.at(launch.entries[allocation.entry].request);
    const uint32_t page = raw(allocation.page);
    if (page < memory_.pages_gpu) {
      if (memory_.poison) pages_.poison(allocation.page, stream);
      request.pages.push_back(page);
      continue;
    }
    KVT_CHECK(offloaded_);
    request.host_copies.push_back(page);
    if (!resident()) continue;
    const uint32_t number = page - memory_.pages_gpu;
    if (memory_.poison) resident_.poison(PageId{number}, stream);
    request.resident.push_back(number);
  }
}

void RetrievedCache::begin_with(const PrefixHit& prefix_hit) {
  KVT_CHECK(prefix_cache_);
  Request& request = requests_.at(prefix_hit.request);
  const cpu::ResidentPrefix prefix = cpu::resident_prefix(prefix_hit, memory_.pages_gpu);
  for (const PageId page : prefix.pages) request.pages.push_back(raw(page));
  for (const PageId host_copy : prefix.host_copies) {
    request.host_copies.push_back(raw(host_copy));
    if (resident()) request.resident.push_back(raw(host_copy) - memory_.pages_gpu);
  }
}

void RetrievedCache::add_entry(const PlanEntry& entry, StepRows* rows) {
  KVT_CHECK(entry.kind == EntryKind::kChunk || entry.kind == EntryKind::kDecode);
  Request& request = requests_.at(entry.request);
  // Placement resident: until the step that completes its prompt has ended, a request has all its pages.
  const bool may_choose = offloaded_ ? request.in_resident : entry.kind == EntryKind::kDecode;
  KVT_CHECK(!request.in_resident || entry.tokens == 1);
  const uint32_t page_tokens = memory_.page_tokens, context = entry.context - request.dropped;
  const uint32_t end = context + entry.tokens;
  const auto first = static_cast<uint32_t>(rows->positions.size());
  for (uint32_t kv_entry = context; kv_entry < end; ++kv_entry) {
    const uint32_t number = kv_entry / page_tokens;
    const uint32_t page = request.pages.at(request.in_resident ? shape_.slot_of(number) : number);
    rows->positions.push_back(kv_entry + request.dropped);
    rows->slots.push_back({page * llm_.kv_heads, kv_entry % page_tokens});
    if ((kv_entry + 1) % page_tokens == 0)
      sealed_.push_back({page, offloaded_ ? request.host_copies.at(number) : page});
  }
  if (offloaded_) retained_.push_back({first + entry.tokens - 1, request.state});
  if (spec_.layers_dense > 0)
    dense_.add(resident() ? request.resident : request.pages, context, entry.tokens, request.dropped);
  if (may_choose && request_retrieves(spec_, page_tokens, end)) {
    KVT_CHECK(entry.tokens == 1);
    return add_choice(&request, first, context, rows);
  }
  const auto table = static_cast<uint32_t>(rows->pages.size());
  rows->pages.insert(rows->pages.end(), request.pages.begin(), request.pages.begin() + pages_of(end));
  attention_.add(first, table, context, entry.tokens, rows);
}

// Rows of no request, which choose nothing and keep no query, up to `size` rows.
void RetrievedCache::pad(uint32_t size, StepRows* rows) {
  attention_.fill_up(size, rows);
  if (spec_.layers_dense > 0) dense_.fill_up(size);
  decodes_ = static_cast<uint32_t>(rows->positions.size());
  if (offloaded_) retained_.resize(std::max(retained_.size(), size_t{decodes_}), {});
  if (!choice_rows_.empty()) choice_rows_.resize(decodes_, {});
}

void RetrievedCache::fill_up(uint32_t form, uint32_t size, const StepStream& on, StepRows* rows) {
  order_->compute_on(on);
  if (offloaded_) order_->wait(StreamKind::kCompute, {Edge::kOffloaded, 0});
  clear_lists();
  fills_ = form % 2 != 0;
  if (form / 2 != 0) choice_rows_.resize(1);
  pad(size, rows);
  send_lists(on);
}

void RetrievedCache::clear_lists() {
  choice_rows_.clear(), sealed_.clear(), retained_.clear(), dense_.clear();
  tables_.clear_step();
  decodes_ = choosing_ = 0, fills_ = false;
}

// Each KV head has a table of its own: sinks, what is chosen (written on the device, layer by layer), window.
void RetrievedCache::add_choice(Request* request, uint32_t row, uint32_t kv_entry, StepRows* rows) {
  const uint32_t pages = pages_of(kv_entry + 1), length = shape_.sinks + shape_.selectable + shape_.window;
  const uint32_t tokens = (length - 1) * memory_.page_tokens + kv_entry % memory_.page_tokens + 1;
  ChoiceRow choice = choice_of(request, pages);
  choice.row = row;
  choice.table = static_cast<uint32_t>(rows->pages.size()) + shape_.sinks, choice.table_stride = length;
  if (offloaded_ && !request->chosen) {
    choice.held = request->filled ? Held::kUnsure : Held::kFirst;
  } else if (offloaded_) {
    choice.held = spec_.speculation ? Held::kTrusted : Held::kUnsure;
  }
  choice.no_more = request->preempted ? 1 : 0;
  request->chosen = true;
  for (uint32_t head = 0; head < llm_.kv_heads; ++head) {
    const auto table = static_cast<uint32_t>(rows->pages.size());
    rows->pages.insert(rows->pages.end(), request->pages.begin(), request->pages.begin() + shape_.sinks);
    rows->pages.resize(rows->pages.size() + shape_.selectable);
    for (uint32_t page = pages - shape_.window; page < pages; ++page)
      rows->pages.push_back(request->pages.at(offloaded_ ? shape_.slot_of(page) : page));
    const uint32_t group = llm_.query_heads / llm_.kv_heads;
    rows->decodes.push_back({row * llm_.query_heads + head * group, table, tokens, head});
  }
  rows->decode_entries += tokens;
  choice_rows_.push_back(choice);
}

// Of its full pages outside of sinks and window. Slots hold nothing yet.
ChoiceRow RetrievedCache::choice_of(Request* request, uint32_t pages) {
  const auto table = [&](DeviceTables::Table* of, const std::vector<uint32_t>& from, uint32_t count) {
    const auto number = [&](uint32_t i) { return from[shape_.sinks + i]; };
    const uint32_t at = tables_.keep(of, count, number);
    for (uint32_t i = 0; memory_.poison && i < count; ++i) KVT_CHECK(tables_[at + i] == number(i));
    return at;
  };
  const std::vector<uint32_t>& owners = offloaded_ ? request->host_copies : request->pages;
  ChoiceRow out;
  out.state = request->state;
  out.candidates = pages - shape_.window - shape_.sinks;
  KVT_CHECK(out.candidates >= shape_.selectable && shape_.sinks + out.candidates <= owners.size());
  out.owners = table(&request->owners, owners, out.candidates);
  if (offloaded_) out.slots = table(&request->slots, request->pages, shape_.selectable);
  return out;
}

void RetrievedCache::free_tables(Request* request) {
  tables_.free(&request->owners);
  tables_.free(&request->slots);
}

// What is forced on the heads that choose, layer by layer.
void RetrievedCache::deal_recalls() {
  forced_outcomes_.clear();
  if (!offloaded_ || given_ == nullptr || given_->recalls.size() != llm_.layers) return;
  std::vector<cpu::ForcedRow> rows;
  for (const ChoiceRow& row : std::span(choice_rows_).first(choosing_))
    rows.push_back({row.held == Held::kTrusted, missing_pages_max(shape_.selectable, row.candidates)});
  const size_t of_heads = rows.size() * llm_.kv_heads, each = choice_rows_.size() * llm_.kv_heads;
  forced_outcomes_.resize(each * (llm_.layers - spec_.layers_dense));
  for (uint32_t layer = spec_.layers_dense; layer < llm_.layers; ++layer) {
    cpu::deal_recall(given_->recalls[layer], rows, llm_.kv_heads, spec_.speculation,
                     std::span(forced_outcomes_).subspan(chooser(layer) * each, of_heads));
  }
}

void RetrievedCache::reserve_rows() {
  uint32_t most = 0;
  for (const ChoiceRow& row : choice_rows_) most = std::max(most, row.candidates);
  choices_.reserve_rows(static_cast<uint32_t>(choice_rows_.size()), most);
  if (copied_) copied_->reserve(static_cast<uint32_t>(choice_rows_.size()));
}

void RetrievedCache::send_lists(const StepStream& on) {
  choices_.reserve_states(states_);
  reserve_rows();
  deal_recalls();
  upload_.clear();
  pack(retained_, &upload_, &at_);
  on.timer->begin(Operation::kUpload);
  upload_.send(on.stream);
  tables_.put(upload_, on.stream);
  if (spec_.layers_dense > 0) dense_.send(on);
}

// In steps of decodes alone, first what has the same length in every step of that many rows (what a kernel
// writes nothing for makes up for pages that no row fills), then what is not.
void RetrievedCache::pack(const std::vector<QueryRetained>& retained, DeviceLists* upload, Lists* at) {
  std::vector<SummaryPage> summaries;
  std::vector<uint32_t> staged;
  for (const Sealed& page : sealed_) {
    staged.push_back(page.page);
    for (uint32_t head = 0; head < llm_.kv_heads; ++head)
      summaries.push_back(
          {page.page * llm_.kv_heads + head, memory_.page_tokens, page.owner * llm_.kv_heads + head});
  }
  if (fills_) summaries.resize(std::max(summaries.size(), size_t{decodes_} * llm_.kv_heads), SummaryPage{});
  at->choices = upload->add(choice_rows_);
  at->retained = upload->add(retained);
  at->forced_outcome = upload->add(forced_outcomes_);
  at->summaries = upload->add(summaries);
  tables_.add_to(upload);
  at->staged = upload->add(staged);
}

void RetrievedCache::warm_up(uint32_t size, const StepStream& on, StepRows* rows) {
  order_->compute_on(on);
  clear_lists();
  attention_.add_warm_up(size, rows);
  if (spec_.layers_dense > 0) dense_.warm_up(size);
  send_lists(on);
}

}  // namespace kvtwin::cuda
