// What the host of a HostChosenCache makes of a layer's rows: factors, homes, choices, and the blocks that go
// to the resident pages.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/base/check.h"
#include "engine/common/retrieval/page_pooling.h"
#include "engine/cuda/device/cuda_check.h"
#include "engine/cuda/retrieval/host_chosen_cache.h"
#include "kernels/common/kv_block.cuh"
#include "kernels/dense/low_rank.h"
#include "kernels/select/select.h"

namespace kvtwin::cuda {
namespace {

// The key as it was before rope_ref() turned it by `position`.
void turn_back(const RopeFrequencies& rope, uint32_t position, uint32_t heads, uint32_t head_dim, float* x) {
  const uint32_t half = head_dim / 2;
  for (uint32_t h = 0; h < heads; ++h, x += head_dim) {
    for (uint32_t i = 0; i < half; ++i) {
      const auto angle = static_cast<double>(static_cast<float>(position) * rope.inverse[i]);
      const double cosine = std::cos(angle) / double{rope.scale}, sine = std::sin(angle) / double{rope.scale};
      const double a = x[i], b = x[i + half];
      x[i] = static_cast<float>(a * cosine + b * sine);
      x[i + half] = static_cast<float>(b * cosine - a * sine);
    }
  }
}

}  // namespace

// What methods keep of rows besides pages.
void HostChosenCache::keep_rows(uint32_t layer) {
  const uint32_t kv_width = llm_.kv_heads * llm_.head_dim, width = llm_.query_heads * llm_.head_dim;
  std::vector<float> key(kv_width);
  for (size_t r = 0; r < rows_.size(); ++r) {
    cpu::ResidentLayer& own = rows_[r].request->layers[layer];
    const float* const k = row_keys_.data() + r * kv_width;
    const float* const q = own.partial != nullptr ? queries_.data() + r * width : nullptr;
    key.assign(k, k + kv_width);
    if (own.partial != nullptr) own.partial->add(q, k);
    if (own.shadow != nullptr) {
      turn_back(rope_, rows_[r].position, llm_.kv_heads, llm_.head_dim, key.data());
      own.shadow->add(key.data());
    }
    if (!prefix_cache_) continue;
    const uint32_t host_copy = rows_[r].request->host_copies.at(rows_[r].position / memory_.page_tokens);
    prefix_rows_.put(layer, host_copy, rows_[r].position % memory_.page_tokens, q, key.data());
  }
}

// Pages that this step has filled: to their homes, and summarised from what lies there.
void HostChosenCache::seal(uint32_t layer, cudaStream_t stream) {
  std::vector<uint32_t> owners;
  const uint64_t bytes = pages_.part_bytes(), numbers = bytes / sizeof(__nv_bfloat16);
  for (const Row& row : rows_) {
    if ((row.position + 1) % memory_.page_tokens != 0) continue;
    owners.push_back(row.request->host_copies.at(row.position / memory_.page_tokens));
    must(cudaMemcpyAsync(const_cast<__nv_bfloat16*>(host_copy_block(layer, owners.back(), 0)),
                         pages_.layer(layer) + row.page * numbers, bytes, cudaMemcpyDeviceToHost, stream),
         "copy of a page to the host", bytes,
         [&] { return fmt::format("page {}, layer {}", row.page, layer); });
  }
  if (owners.empty()) return;
  must(cudaStreamSynchronize(stream), "copies of pages to the host", 0, [] { return std::string(); });
  if (!shadow()) return;
  for (const uint32_t owner : owners) {
    for (uint32_t head = 0; head < llm_.kv_heads; ++head)
      summaries_.summarise(cpu::kind_of(spec_.summary), owner, layer, head,
                           host_copy_keys(layer, owner, head).data(), memory_.page_tokens);
  }
}

const __nv_bfloat16* HostChosenCache::host_copy_block(uint32_t layer, uint32_t owner, uint32_t head) const {
  const uint64_t page = (owner - memory_.pages_gpu) * pages_.page_bytes() / sizeof(__nv_bfloat16);
  return pages_.host_layer(layer) + page + head * uint64_t{2} * memory_.page_tokens * llm_.head_dim;
}

std::vector<float> HostChosenCache::host_copy_keys(uint32_t layer, uint32_t owner, uint32_t head) const {
  const KvBlockShape block{memory_.page_tokens, llm_.head_dim};
  const __nv_bfloat16* const from = host_copy_block(layer, owner, head);
  std::vector<float> out;
  for (uint32_t t = 0; t < memory_.page_tokens; ++t) {
    for (uint32_t c = 0; c < llm_.head_dim; ++c) out.push_back(__bfloat162float(from[block.at(t, c)]));
  }
  return out;
}

cpu::HeadChoice HostChosenCache::choose(uint32_t layer, const Request& request, uint32_t head, uint32_t pages,
                                        const float* q) const {
  const auto vectors = [&](uint32_t page) {
    return summaries_.vectors(request.host_copies[page], layer, head);
  };
  cpu::PageCandidates from{shape_.sinks, end_candidates(pages), {}, vectors};
  if (!request.layers[layer].heads.empty()) from.stays = request.layers[layer].heads[head].extra;
  return cpu::choose_pages(spec_, llm_, shape_.selectable, from, q);
}

// The pages before `end` that their landmarks say least about; they stay as they are. Ascending.
std::vector<uint32_t> HostChosenCache::outliers(uint32_t layer, const Request& request, uint32_t head,
                                                uint32_t end) const {
  if (shape_.extra == 0) return {};
  std::vector<float> scores;
  for (uint32_t page = shape_.sinks; page < end; ++page) {
    const float* const landmark = summaries_.vectors(request.host_copies[page], layer, head).high;
    scores.push_back(kernels::outlier_score_ref(host_copy_keys(layer, request.host_copies[page], head).data(),
                                                landmark, memory_.page_tokens, llm_.head_dim));
  }
  std::vector<uint32_t> pages = kernels::select_rows(scores, {}, shape_.extra);
  for (uint32_t& page : pages) page += shape_.sinks;
  return pages;
}

__nv_bfloat16* HostChosenCache::stage(uint64_t numbers) {
  __nv_bfloat16* const out = staged_.as<__nv_bfloat16>() + staged_numbers_;
  staged_numbers_ += numbers;
  KVT_CHECK(staged_numbers_ * sizeof(__nv_bfloat16) <= staged_.bytes());
  return out;
}

void HostChosenCache::write_block(uint32_t layer, uint32_t page, uint32_t head, uint32_t side,
                                  const __nv_bfloat16* from, uint64_t numbers, cudaStream_t stream) {
  const uint64_t half = uint64_t{memory_.page_tokens} * llm_.head_dim;
  __nv_bfloat16* const to =
      pages_.layer(layer) + (uint64_t{page} * llm_.kv_heads + head) * 2 * half + side * half;
  must(cudaMemcpyAsync(to, from, numbers * sizeof(__nv_bfloat16), cudaMemcpyHostToDevice, stream),
       "copy into an arena", numbers * sizeof(__nv_bfloat16),
       [&] { return fmt::format("page {}, head {}, layer {}", page, head, layer); });
}

// ShadowKV: values of chosen pages come from their homes, keys of all that are read are rebuilt.
void HostChosenCache::rebuild(uint32_t layer, const Row& row, const float* q, cudaStream_t stream) {
  const uint32_t group = llm_.query_heads / llm_.kv_heads, pages = pages_of(row.position + 1);
  const uint64_t half = uint64_t{memory_.page_tokens} * llm_.head_dim;
  cpu::ResidentLayer& own = row.request->layers[layer];
  own.shadow->factorise();
  recalls_[layer].heads += llm_.kv_heads;
  recalls_[layer].chosen += llm_.kv_heads * shape_.selectable;
  if (own.heads.empty()) {
    const uint32_t end = shape_.sinks + shape_.selectable + shape_.extra;
    for (uint32_t h = 0; h < llm_.kv_heads; ++h)
      own.heads.push_back(cpu::outgrown_head(shape_, outliers(layer, *row.request, h, end)));
  }
  for (uint32_t h = 0; h < llm_.kv_heads; ++h) {
    cpu::HeadResidentPages& head = own.heads[h];
    const cpu::HeadChoice choice =
        choose(layer, *row.request, h, pages, q + uint64_t{h} * group * llm_.head_dim);
    const auto changes = kernels::replace_slots_ref(choice.chosen, choice.scores, shape_.sinks, head.held);
    recalls_[layer].blocking += static_cast<uint32_t>(changes.size());
    for (const kernels::SlotChange& change : changes) {
      write_block(layer, row.request->pages[head.slots[change.slot]].page, h, 1,
                  host_copy_block(layer, row.request->host_copies[change.page], h) + half, half, stream);
    }
    rebuild_keys(layer, *row.request, h, stream);
  }
}

// Of every page in a slot that the query chooses: directions may be newer than when it came.
void HostChosenCache::rebuild_keys(uint32_t layer, const Request& request, uint32_t head,
                                   cudaStream_t stream) {
  const KvBlockShape block{memory_.page_tokens, llm_.head_dim};
  const uint64_t half = uint64_t{memory_.page_tokens} * llm_.head_dim;
  const cpu::HeadResidentPages& slots = request.layers[layer].heads[head];
  std::vector<float> key(llm_.head_dim);
  for (size_t i = 0; i < slots.held.size(); ++i) {
    __nv_bfloat16* const keys = stage(half);
    for (uint32_t t = 0; t < memory_.page_tokens; ++t) {
      request.layers[layer].shadow->rebuild(rope_, slots.held[i] * memory_.page_tokens + t, head, key.data());
      for (uint32_t c = 0; c < llm_.head_dim; ++c) keys[block.at(t, c)] = __float2bfloat16(key[c]);
    }
    write_block(layer, request.pages[slots.slots[i]].page, head, 0, keys, half, stream);
  }
}

// InfiniGen: for `layer`, from the input of the layer before; one by one into the slots between sinks and
// window.
void HostChosenCache::choose_tokens(uint32_t layer, const Row& row, const float* x, cudaStream_t stream) {
  const KvBlockShape block{memory_.page_tokens, llm_.head_dim};
  const uint32_t page_tokens = memory_.page_tokens;
  const uint64_t half = uint64_t{page_tokens} * llm_.head_dim;
  cpu::ResidentLayer& own = row.request->layers[layer];
  std::vector<float> q(uint64_t{llm_.query_heads} * llm_.head_dim);
  projections_[layer - spec_.layers_dense].apply(rope_, row.position, x, q.data());
  own.tokens = cpu::choose_tokens(spec_, llm_, *own.partial, q.data(), shape_.sinks * page_tokens,
                                  end_candidates(pages_of(row.position + 1)) * page_tokens,
                                  shape_.selectable * page_tokens);
  for (uint32_t h = 0; h < llm_.kv_heads; ++h) {
    const std::vector<uint32_t>& tokens = own.tokens[h];
    if (selected_tokens_) selected_tokens_({row.id, layer, h, row.position}, tokens);
    const auto count = static_cast<uint32_t>(tokens.size());
    for (uint32_t first = 0; first < count; first += page_tokens) {
      __nv_bfloat16* const kv_entries = stage(2 * half);
      std::fill_n(kv_entries, 2 * half, __float2bfloat16(memory_.poison ? NAN : 0.0f));
      for (uint32_t i = 0; i < std::min(page_tokens, count - first); ++i) {
        const uint32_t token = tokens[first + i];
        const __nv_bfloat16* const from =
            host_copy_block(layer, row.request->host_copies[token / page_tokens], h);
        for (uint32_t c = 0; c < llm_.head_dim; ++c) {
          const uint32_t to = block.at(i, c), at = block.at(token % page_tokens, c);
          kv_entries[to] = from[at], kv_entries[half + to] = from[half + at];
        }
      }
      write_block(layer, row.request->pages.at(shape_.sinks + first / page_tokens).page, h, 0, kv_entries,
                  2 * half, stream);
    }
    const uint32_t pages = pages_of(count);  // rounded up: reports are in pages
    recalls_[layer].blocking += pages, recalls_[layer].chosen += pages, ++recalls_[layer].heads;
  }
}

// What the last query of the prompt would read; its pages are in their homes by now.
void HostChosenCache::fill_slots(uint32_t layer, Request* request, uint32_t pages, cudaStream_t stream) {
  const uint64_t block = uint64_t{2} * memory_.page_tokens * llm_.head_dim;
  const uint32_t group = llm_.query_heads / llm_.kv_heads;
  cpu::ResidentLayer& own = request->layers[layer];
  own.heads.resize(llm_.kv_heads);
  own.shadow->factorise();
  for (uint32_t h = 0; h < llm_.kv_heads; ++h) {
    cpu::HeadResidentPages& head = own.heads[h];
    head.slots.resize(shape_.selectable), head.extra_slots.resize(shape_.extra);
    std::iota(head.slots.begin(), head.slots.end(), shape_.sinks);
    std::iota(head.extra_slots.begin(), head.extra_slots.end(), shape_.sinks + shape_.selectable);
    head.extra = outliers(layer, *request, h, end_candidates(pages));
    const float* const q = own.q_before.data() + uint64_t{h} * group * llm_.head_dim;
    head.held = choose(layer, *request, h, pages, q).chosen;
    const auto place = [&](const std::vector<uint32_t>& held, const std::vector<uint32_t>& slots) {
      for (size_t i = 0; i < held.size(); ++i)
        write_block(layer, request->pages[slots[i]].page, h, 0,
                    host_copy_block(layer, request->host_copies[held[i]], h), block, stream);
    };
    place(head.held, head.slots), place(head.extra, head.extra_slots);
  }
}

}  // namespace kvtwin::cuda
