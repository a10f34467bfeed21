// What the host of a FactoredCache makes of rows: factors, the pages that stay, and the slots of a request
// whose prompt is complete.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/base/check.h"
#include "engine/common/retrieval/head_choice.h"
#include "engine/common/retrieval/page_pooling.h"
#include "engine/cuda/device/cuda_check.h"
#include "engine/cuda/page_choosing.h"
#include "engine/cuda/retrieval/factored_cache.h"
#include "kernels/common/kv_block.cuh"
#include "kernels/dense/low_rank.h"
#include "kernels/select/page_summary.h"
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

void widen(const __nv_bfloat16* from, uint32_t count, std::vector<float>* to) {
  to->resize(count);
  for (uint32_t i = 0; i < count; ++i) (*to)[i] = __bfloat162float(from[i]);
}

// Rows of `width` numbers as bf16, in rows of `padded`, zero behind.
std::vector<__nv_bfloat16> narrowed(const float* from, uint64_t rows, uint32_t width, uint32_t padded) {
  std::vector<__nv_bfloat16> out(rows * padded, __float2bfloat16(0.0f));
  for (uint64_t r = 0; r < rows; ++r) {
    for (uint32_t i = 0; i < width; ++i) out[r * padded + i] = __float2bfloat16(from[r * width + i]);
  }
  return out;
}

}  // namespace

// Starts the copy of the step's queries and keys to the host; rows of prompts are waited for.
void FactoredCache::take_rows(uint32_t layer, const LayerRows& tensors, cudaStream_t stream) {
  const uint32_t region = at_once_ ? 0 : chooser(layer);
  const uint64_t rows = rows_.size(), each = sizeof(__nv_bfloat16);
  char* const to = fetched_.as<char>(region * rows * (q_width() + kv_width()) * each);
  const auto fetch = [&](char* target, const __nv_bfloat16* from, uint64_t bytes) {
    must(cudaMemcpyAsync(target, from, bytes, cudaMemcpyDeviceToHost, stream), "copy of rows", bytes,
         [&] { return fmt::format("{} rows, layer {}", rows, layer); });
  };
  if (!shadow()) fetch(to, tensors.q, rows * q_width() * each);
  fetch(to + rows * q_width() * each, keys_.as<__nv_bfloat16>(), rows * kv_width() * each);
  if (!at_once_) return;
  must(cudaStreamSynchronize(stream), "copy of rows");
  keep_rows(layer, region);
}

void FactoredCache::keep_rows(uint32_t layer, uint32_t region) {
  const uint64_t rows = rows_.size();
  const auto* const queries = fetched_.as<const __nv_bfloat16>() + region * rows * (q_width() + kv_width());
  const __nv_bfloat16* const keys = queries + rows * q_width();
  std::vector<float> query, key;
  for (uint64_t r = 0; r < rows; ++r) {
    cpu::ResidentLayer& own = rows_[r].request->layers[layer];
    widen(keys + r * kv_width(), kv_width(), &key);
    if (!shadow()) widen(queries + r * q_width(), q_width(), &query);
    if (own.partial != nullptr) own.partial->add(query.data(), key.data());
    if (own.shadow != nullptr) {
      turn_back(rope_, rows_[r].position, llm_.kv_heads, llm_.head_dim, key.data());
      own.shadow->add(key.data());
    }
    if (!prefix_cache_) continue;
    const uint32_t host_copy = rows_[r].request->host_copies.at(rows_[r].position / memory_.page_tokens);
    prefix_rows_.put(layer, host_copy, rows_[r].position % memory_.page_tokens,
                     shadow() ? nullptr : query.data(), key.data());
  }
}

// Prompts that are complete: see RetrievedCache::enter_residents(). Every request gets factors; pages move if
// they are more than there are slots.
void FactoredCache::enter_residents(const StepStream& on) {
  for (Request* const request : entering_) {
    if (!shadow()) put_partial_keys(request, on.stream);
  }
  std::vector<Request*> all = entering_;
  std::erase_if(entering_, [&](const Request* one) { return one->pages.size() <= shape_.slots; });
  if (!entering_.empty()) {
    order_->wait_for(StreamKind::kOffload);  // the host reads full pages in their homes
    if (shadow()) add_entering();
    const StepListSpec spec{llm_.layers, false, {.layers_dense = spec_.layers_dense, .kind = kind_}};
    const StepList list = list_entering(spec);
    for (const ListedOperation& one : list.operations()) {
      order_->begin(one);
      if (one.kind == Operation::kMove) {
        copy_window(on.stream);
      } else if (one.kind == Operation::kUpload) {
        enter_upload_.send(on.stream);
      } else {
        fill_slots(one, on.stream);
      }
      order_->end(one);
    }
    on.timer->end();
    must(cudaStreamSynchronize(on.stream), "filling of slots");
    order_->step_ended();
  }
  for (Request* const request : all)
    request->pages.resize(
        gpu_pages_held(spec_, memory_.page_tokens, static_cast<uint32_t>(request->host_copies.size())));
}

// Ring slots to be overwritten hold pages that left the window: see slot_of().
void FactoredCache::copy_window(cudaStream_t stream) {
  for (const Request* const request : entering_) {
    const auto pages = static_cast<uint32_t>(request->pages.size());
    for (uint32_t page = std::max(pages - shape_.window, shape_.slots); page < pages; ++page)
      pages_.copy(PageId{request->pages[page].page}, PageId{request->pages[shape_.slot_of(page)].page},
                  stream);
  }
}

// InfiniGen: from here on the device adds to them.
void FactoredCache::put_partial_keys(Request* request, cudaStream_t stream) {
  const uint64_t page = uint64_t{memory_.page_tokens} * llm_.kv_heads * columns_;
  for (uint32_t layer = spec_.layers_dense; layer < llm_.layers; ++layer) {
    cpu::PartialKeys& partial = *request->layers[layer].partial;
    partial.choose_columns();
    directions_.put(chooser(layer), request->state, 0, partial.directions().data(),
                    partial.directions().size() * sizeof(float), stream);
    const std::vector<float>& keys = partial.keys();
    for (uint64_t first = 0, i = 0; first < keys.size(); first += page, ++i) {
      factor_pages_.put(chooser(layer), request->factors.at(i), 0, keys.data() + first,
                        std::min<uint64_t>(page, keys.size() - first) * sizeof(float), stream);
    }
    request->layers[layer].partial.reset();
  }
}

// ShadowKV: coordinates of pages that are full, and directions when they are new.
void FactoredCache::put_factors(Request* request, cudaStream_t stream) {
  request->factorise();
  const cpu::ShadowKeys& any = *request->layers[spec_.layers_dense].shadow;
  const bool anew = any.refreshes() != request->refreshes;
  const uint32_t page_tokens = memory_.page_tokens, end = any.known() / page_tokens;
  for (uint32_t layer = spec_.layers_dense; layer < llm_.layers; ++layer) {
    const cpu::ShadowKeys& shadow = *request->layers[layer].shadow;
    if (anew) {
      const auto directions = narrowed(shadow.directions().data(), spec_.rank, kv_width(), kv_width());
      directions_.put(chooser(layer), request->state, 0, directions.data(),
                      directions.size() * sizeof(__nv_bfloat16), stream);
    }
    for (uint32_t page = anew ? 0 : request->coordinates; page < end; ++page) {
      const auto coordinates =
          narrowed(shadow.coordinates().data() + uint64_t{page} * page_tokens * spec_.rank, page_tokens,
                   spec_.rank, rank_);
      factor_pages_.put(chooser(layer), request->factors.at(page), 0, coordinates.data(),
                        coordinates.size() * sizeof(__nv_bfloat16), stream);
    }
  }
  request->refreshes = any.refreshes(), request->coordinates = end;
}

const __nv_bfloat16* FactoredCache::host_copy_block(uint32_t layer, uint32_t owner, uint32_t head) const {
  const uint64_t page = (owner - memory_.pages_gpu) * pages_.page_bytes() / sizeof(__nv_bfloat16);
  return pages_.host_layer(layer) + page + head * uint64_t{2} * memory_.page_tokens * llm_.head_dim;
}

std::vector<float> FactoredCache::host_copy_keys(uint32_t layer, uint32_t owner, uint32_t head) const {
  const KvBlockShape block{memory_.page_tokens, llm_.head_dim};
  const __nv_bfloat16* const from = host_copy_block(layer, owner, head);
  std::vector<float> out;
  for (uint32_t t = 0; t < memory_.page_tokens; ++t) {
    for (uint32_t c = 0; c < llm_.head_dim; ++c) out.push_back(__bfloat162float(from[block.at(t, c)]));
  }
  return out;
}

// The pages before `end` that their landmarks say least about; they stay as they are. Ascending.
std::vector<uint32_t> FactoredCache::outliers(uint32_t layer, const Request& request, uint32_t head,
                                              uint32_t end) const {
  if (shape_.extra == 0) return {};
  std::vector<float> scores, landmark(llm_.head_dim), low(llm_.head_dim);
  for (uint32_t page = shape_.sinks; page < end; ++page) {
    const std::vector<float> keys = host_copy_keys(layer, request.host_copies[page], head);
    kernels::summarise_page_ref(cpu::kind_of(spec_.summary), keys.data(), memory_.page_tokens, llm_.head_dim,
                                landmark.data(), low.data());
    scores.push_back(
        kernels::outlier_score_ref(keys.data(), landmark.data(), memory_.page_tokens, llm_.head_dim));
  }
  std::vector<uint32_t> pages = kernels::select_rows(scores, {}, shape_.extra);
  for (uint32_t& page : pages) page += shape_.sinks;
  return pages;
}

// One head of a page from its home.
void FactoredCache::place_block(uint32_t layer, const Request& request, uint32_t head, uint32_t page,
                                uint32_t slot, cudaStream_t stream) {
  const uint64_t numbers = uint64_t{2} * memory_.page_tokens * llm_.head_dim;
  const uint64_t block = uint64_t{request.pages[slot].page} * llm_.kv_heads + head;
  must(cudaMemcpyAsync(pages_.layer(layer) + block * numbers,
                       host_copy_block(layer, request.host_copies[page], head),
                       numbers * sizeof(__nv_bfloat16), cudaMemcpyHostToDevice, stream),
       "copy into resident pages", numbers * sizeof(__nv_bfloat16),
       [&] { return fmt::format("page {}, head {}, layer {}", page, head, layer); });
}

// Notes the pages of a head that stay, and puts those that are not there into the slots behind the others.
void FactoredCache::stay(uint32_t layer, const Request& request, uint32_t head,
                         std::span<const uint32_t> pages, cudaStream_t stream) {
  if (pages.empty()) return;
  KVT_CHECK(pages.size() == shape_.extra);
  std::vector<uint32_t> candidates;
  const uint32_t first = shape_.sinks + shape_.selectable;
  for (uint32_t i = 0; i < pages.size(); ++i) {
    candidates.push_back(pages[i] - shape_.sinks);
    if (request.filled || pages[i] != first + i)
      place_block(layer, request, head, pages[i], first + i, stream);
  }
  const uint64_t bytes = candidates.size() * sizeof(uint32_t);
  stays_.put(chooser(layer), request.state, head * bytes, candidates.data(), bytes, stream);
}

// A request that decodes beyond its resident pages: page p is in slot p. From here on each KV head has its
// own slots: all pages but those that stay, in order, and then these.
void FactoredCache::outgrow(Request* request, cudaStream_t stream) {
  order_->wait_for(StreamKind::kOffload);  // the host reads full pages in their homes
  for (uint32_t layer = spec_.layers_dense; layer < llm_.layers; ++layer) {
    uint32_t* const held = choices_.spare_args(chooser(layer)).held;
    for (uint32_t head = 0; head < llm_.kv_heads; ++head) {
      const cpu::HeadResidentPages own = cpu::outgrown_head(
          shape_, outliers(layer, *request, head, shape_.sinks + shape_.selectable + shape_.extra));
      std::vector<uint32_t> candidates;
      for (uint32_t i = 0; i < own.held.size(); ++i) {
        candidates.push_back(own.held[i] - shape_.sinks);
        if (candidates[i] != i) place_block(layer, *request, head, own.held[i], shape_.sinks + i, stream);
      }
      stay(layer, *request, head, own.extra, stream);
      const uint64_t at = (uint64_t{request->state} * llm_.kv_heads + head) * shape_.selectable;
      must(cudaMemcpyAsync(held + at, candidates.data(), candidates.size() * sizeof(uint32_t),
                           cudaMemcpyHostToDevice, stream),
           "pages of slots");
    }
  }
  request->filled = true;
}

// ShadowKV: what the last query of each prompt would read.
void FactoredCache::add_entering() {
  lists_.clear(), choice_rows_.clear();
  uint32_t most = 0;
  for (Request* const request : entering_) {
    request->filled = true;
    ChoiceRow choice = choice_of(*request, static_cast<uint32_t>(request->pages.size()));
    choice.row = request->state, choice.held = Held::kNothing;
    most = std::max(most, choice.candidates);
    choice_rows_.push_back(choice);
  }
  choices_.reserve_rows(static_cast<uint32_t>(choice_rows_.size()), most);
  enter_upload_.clear();
  entering_lists_ = enter_upload_.add(lists_);
  entering_rows_ = enter_upload_.add(choice_rows_);
}

void FactoredCache::fill_slots(const ListedOperation& one, cudaStream_t stream) {
  const uint32_t layer = one.layer;
  ChoiceArgs args = choices_.spare_args(chooser(layer));
  args.rows = enter_upload_.at(entering_rows_), args.count = entering_rows_.count;
  args.lists = enter_upload_.at(entering_lists_);
  args.q = args.q_before, args.tables = choices_.spare_tables();
  args.stays = stays_.layer<uint32_t>(chooser(layer)), args.stay = shape_.extra;
  if (one.kind == Operation::kChoose)
    return must(choose_pages(choices_.shape(), args, stream), "choose_pages");
  if (one.kind == Operation::kRecall) {
    return must(
        recall_pages({host_layer(layer), pages_.layer(layer), args.before, &args.counts->before, kRecallCtas},
                     stream),
        "recall_pages");
  }
  for (const Request* const request : entering_) {
    const uint32_t end = end_candidates(static_cast<uint32_t>(request->pages.size()));
    for (uint32_t head = 0; head < llm_.kv_heads; ++head)
      stay(layer, *request, head, outliers(layer, *request, head, end), stream);
  }
  must(cudaMemsetAsync(args.counts, 0, sizeof(ChoiceCounts), stream), "counts of choices");
  must(score_pages(choices_.shape(), args, stream), "score_pages");
}

}  // namespace kvtwin::cuda
