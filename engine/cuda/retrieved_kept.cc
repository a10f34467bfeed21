// From what a budget has left of a prompt to an arena (recalled_cells.h).

#include <fmt/format.h>

#include "engine/base/check.h"
#include "engine/cuda/cuda_check.h"
#include "engine/cuda/retrieved_cache.h"

namespace kvtwin::cuda {

void RetrievedCache::expect(CallId call) {
  KVT_CHECK(arena_);
  new_call(call);
  choices_.reserve_states(states_);
}

void RetrievedCache::keep_query(uint32_t layer, CallId call, const __nv_bfloat16* q, cudaStream_t stream) {
  if (dense(layer)) return;
  const uint64_t numbers = uint64_t{llm_.query_heads} * llm_.head_dim,
                 bytes = numbers * sizeof(__nv_bfloat16);
  must(cudaMemcpyAsync(choices_.q_before(chooser(layer)) + calls_.at(call).state * numbers, q, bytes,
                       cudaMemcpyDeviceToDevice, stream),
       "copy of a query", bytes, [&] { return fmt::format("layer {}", layer); });
}

// Pages of the call, by position among what is left.
void RetrievedCache::take_kept(const KeptPrompt& prompt, cudaStream_t stream) {
  KVT_CHECK(prompt.cells > 0 && prompt.cells <= prompt.tokens);
  Call& call = calls_.at(prompt.call);
  const uint32_t pages = pages_of(prompt.cells), full = prompt.cells / memory_.page_tokens;
  call.gone = prompt.tokens - prompt.cells;
  call.in_arena = true;
  for (uint32_t i = 0; i < pages; ++i) {
    const uint32_t page = raw(prompt.gpu[i]), home = raw(prompt.homes[i]);
    call.pages.push_back(page);
    call.homes.push_back(home);
    if (memory_.poison) pages_.poison(PageId{page}, stream);
    if (i < full) sealed_.push_back({page, home});
    if (!resident()) continue;
    const uint32_t number = home - memory_.pages_gpu;
    call.resident.push_back(number);
    if (memory_.poison) resident_.poison(PageId{number}, stream);
  }
  if (pages > shape_.slots) entering_.push_back(&call);
}

// Where every head's cells come from, and where they go: a list for each layer, with one entry more that says
// how many cells there are.
void RetrievedCache::copy_kept(std::span<const KeptPrompt> prompts, const CellPool& from,
                               cudaStream_t stream) {
  std::vector<uint32_t> tables;
  std::vector<GatherSequence> list;
  const auto table = [&](const auto& pages) {
    const auto at = static_cast<uint32_t>(tables.size());
    for (const auto page : pages) tables.push_back(static_cast<uint32_t>(page));
    return at;
  };
  for (uint32_t layer = 0; layer < llm_.layers; ++layer) {
    uint32_t first = 0;
    for (const KeptPrompt& prompt : prompts) {
      const Call& call = calls_.at(prompt.call);
      const uint32_t target = table(dense(layer) ? call.resident : call.pages);
      for (uint32_t head = 0; head < llm_.kv_heads; ++head) {
        const KeptHead& own = prompt.heads[layer * llm_.kv_heads + head];
        list.push_back({first, table(own.pages), own.column, target, head});
        first += prompt.cells;
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
    order_->touches(Lane::kCompute, HappensBefore::Access::kWrite, "pages of layer", layer, "cells kept");
    GatherArgs args;
    args.source_pool = from.pool;
    args.target_pool = dense(layer) ? resident_.layer(layer) : pages_.layer(layer);
    args.source = {kept_upload_.at(tables_at), memory_.page_tokens, from.heads_per_page};
    args.target = {kept_upload_.at(tables_at), memory_.page_tokens, llm_.kv_heads};
    args.table = kept_upload_.at(list_at) + size_t{layer} * (sequences + 1);
    args.sequences = sequences, args.head_dim = llm_.head_dim;
    must(gather_cells(args, stream), "gather_cells", 0,
         [&] { return fmt::format("{} prompts, layer {}", prompts.size(), layer); });
  }
}

void RetrievedCache::take_over(std::span<const KeptPrompt> prompts, const CellPool& from,
                               cudaStream_t stream) {
  if (prompts.empty()) return;
  order_->compute_on(stream);
  // The lists of pages that are on their way to the host are written anew.
  order_->wait(Lane::kCompute, Edge::kOffloaded, 0);
  choice_rows_.clear(), lists_.clear(), sealed_.clear(), kept_.clear(), entering_.clear(), imposed_.clear();
  decodes_ = 0;
  for (const KeptPrompt& prompt : prompts) take_kept(prompt, stream);
  copy_kept(prompts, from, stream);
  upload_.clear();
  pack({}, &upload_, &at_);
  upload_.send(stream);
  for (uint32_t layer = spec_.layers_dense; layer < llm_.layers; ++layer) seal(layer, stream);
  enter_arenas(stream);
  must(cudaStreamSynchronize(stream), "what is left of prompts", 0, [] { return std::string(); });
  order_->step_ended();
  for (const KeptPrompt& prompt : prompts) {
    Call& call = calls_.at(prompt.call);
    call.pages.resize(gpu_pages_held(spec_, memory_.page_tokens, static_cast<uint32_t>(call.homes.size())));
  }
}

}  // namespace kvtwin::cuda
