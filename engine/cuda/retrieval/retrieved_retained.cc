// Moves the retained KV entries of a prompt to resident pages (recalled_entries.h).

#include <fmt/format.h>

#include "engine/base/check.h"
#include "engine/cuda/device/cuda_check.h"
#include "engine/cuda/retrieval/retrieved_cache.h"

namespace kvtwin::cuda {

void RetrievedCache::expect(RequestId request) {
  KVT_CHECK(offloaded_);
  new_request(request);
  choices_.reserve_states(states_);
}

void RetrievedCache::keep_query(uint32_t layer, RequestId request, const __nv_bfloat16* q,
                                cudaStream_t stream) {
  if (dense(layer)) return;
  const uint64_t numbers = uint64_t{llm_.query_heads} * llm_.head_dim,
                 bytes = numbers * sizeof(__nv_bfloat16);
  must(cudaMemcpyAsync(choices_.q_before(chooser(layer)) + requests_.at(request).state * numbers, q, bytes,
                       cudaMemcpyDeviceToDevice, stream),
       "copy of a query", bytes, [&] { return fmt::format("layer {}", layer); });
}

// The request's pages, by position among the retained KV entries.
void RetrievedCache::take_retained(const RetainedPrompt& prompt) {
  KVT_CHECK(prompt.kv_entries > 0 && prompt.kv_entries <= prompt.tokens);
  Request& request = requests_.at(prompt.request);
  const uint32_t pages = pages_of(prompt.kv_entries), full = prompt.kv_entries / memory_.page_tokens;
  request.dropped = prompt.tokens - prompt.kv_entries;
  request.in_resident = true;
  for (uint32_t i = 0; i < pages; ++i) {
    const uint32_t page = raw(prompt.gpu[i]), host_copy = raw(prompt.host_copies[i]);
    request.pages.push_back(page);
    request.host_copies.push_back(host_copy);
    if (i < full) sealed_.push_back({page, host_copy});
    if (!resident()) continue;
    const uint32_t number = host_copy - memory_.pages_gpu;
    request.resident.push_back(number);
  }
  if (pages > shape_.slots) entering_.push_back(&request);
}

void RetrievedCache::poison(const Request& request, cudaStream_t stream) const {
  if (!memory_.poison) return;
  for (const uint32_t page : request.pages) pages_.poison(PageId{page}, stream);
  for (const uint32_t page : request.resident) resident_.poison(PageId{page}, stream);
}

// Source and target of every head's KV entries: one list per layer, with a last entry that holds their
// number.
void RetrievedCache::copy_retained(std::span<const RetainedPrompt> prompts, const KvEntryPool& from,
                                   cudaStream_t stream) {
  std::vector<uint32_t> tables;
  std::vector<GatherSequence> list;
  const auto table = [&](const auto& pages) {
    const auto at = static_cast<uint32_t>(tables.size());
    for (const auto page : pages) tables.push_back(static_cast<uint32_t>(page));
    return at;
  };
  for (const RetainedPrompt& prompt : prompts) poison(requests_.at(prompt.request), stream);
  for (uint32_t layer = 0; layer < llm_.layers; ++layer) {
    uint32_t first = 0;
    for (const RetainedPrompt& prompt : prompts) {
      const Request& request = requests_.at(prompt.request);
      const uint32_t target = table(dense(layer) ? request.resident : request.pages);
      for (uint32_t head = 0; head < llm_.kv_heads; ++head) {
        const RetainedHead& own = prompt.heads[layer * llm_.kv_heads + head];
        list.push_back({first, table(own.pages), own.column, target, head});
        first += prompt.kv_entries;
      }
    }
    list.push_back({first, 0, 0, 0, 0});
  }
  kept_upload_.clear();
  const ListAt<uint32_t> tables_at = kept_upload_.add(tables);
  const ListAt<GatherSequence> list_at = kept_upload_.add(list);
  kept_upload_.send(stream);
  const auto sequences = static_cast<uint32_t>(prompts.size()) * llm_.kv_heads;
  for (uint32_t layer = 0; layer < llm_.layers; ++layer) {
    order_->touches(StreamKind::kCompute, HappensBefore::Access::kWrite, watched::kPages, layer,
                    "KV entries kept");
    GatherArgs args;
    args.source_pool = from.pool;
    args.target_pool = dense(layer) ? resident_.layer(layer) : pages_.layer(layer);
    args.source = {kept_upload_.at(tables_at), memory_.page_tokens, from.heads_per_page};
    args.target = {kept_upload_.at(tables_at), memory_.page_tokens, llm_.kv_heads};
    args.table = kept_upload_.at(list_at) + size_t{layer} * (sequences + 1);
    args.sequences = sequences, args.head_dim = llm_.head_dim;
    must(gather_entries(args, stream), "gather_entries", 0,
         [&] { return fmt::format("{} prompts, layer {}", prompts.size(), layer); });
  }
}

void RetrievedCache::take_over(std::span<const RetainedPrompt> prompts, const KvEntryPool& from,
                               const StepStream& on) {
  if (prompts.empty()) return;
  const cudaStream_t stream = on.stream;
  order_->compute_on(on);
  choice_rows_.clear(), sealed_.clear(), retained_.clear(), entering_.clear(), forced_outcomes_.clear();
  tables_.clear_step();
  decodes_ = 0;
  for (const RetainedPrompt& prompt : prompts) take_retained(prompt);
  fills_ = !sealed_.empty();
  const StepList list = list_taking_over(sealing());
  for (const ListedOperation& one : list.operations()) {
    order_->begin(one);
    if (one.kind == Operation::kMove) {
      copy_retained(prompts, from, stream);
    } else if (one.kind == Operation::kUpload) {
      upload_.clear();
      pack({}, &upload_, &at_);
      upload_.send(stream);
      tables_.put(upload_, stream);
    } else {
      start_sealing(one);
    }
    order_->end(one);
  }
  on.timer->end();
  enter_residents(on);
  must(cudaStreamSynchronize(stream), "what is left of prompts", 0, [] { return std::string(); });
  order_->step_ended();
  for (const RetainedPrompt& prompt : prompts) {
    Request& request = requests_.at(prompt.request);
    request.pages.resize(
        gpu_pages_held(spec_, memory_.page_tokens, static_cast<uint32_t>(request.host_copies.size())));
  }
}

}  // namespace kvtwin::cuda
