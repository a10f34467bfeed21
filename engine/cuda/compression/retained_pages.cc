#include "engine/cuda/compression/retained_pages.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/base/check.h"
#include "engine/cuda/device/cuda_check.h"
#include "engine/cuda/page_choosing.h"

namespace kvtwin::cuda {
Result<std::unique_ptr<RetainedPages>> RetainedPages::make(const LlmSpec* llm, const RetrievalSpec& spec,
                                                           const Shape& shape) {
  std::unique_ptr<RetainedPages> out(new RetainedPages(llm, spec, shape));
  out->tail_pages_ = div_ceil(shape.tail_entries, kDequantizedPage) + 2;
  const uint64_t bytes = uint64_t{shape.columns} * 2 * llm->head_dim * sizeof(__nv_bfloat16);
  Result<DevicePages> summaries = DevicePages::make_packed(bytes, 1, shape.pages, shape.pages_host);
  if (!summaries) return tl::unexpected<Error>(summaries.error());
  out->summaries_ = std::move(*summaries);
  return out;
}

void RetainedPages::begin(Tail* tail) {
  tail->first.assign(shape_.heads, 0);
  if (tail->slot != UINT32_MAX) return;
  if (free_slots_.empty()) free_slots_.push_back(slots_++);
  tail->slot = free_slots_.back();
  free_slots_.pop_back();
  grow_tails();
}

// REQUIRES: no step is in flight.
void RetainedPages::grow_tails() {
  if (slots_ <= room_) return;
  const uint64_t each =
      uint64_t{shape_.heads} * tail_pages_ * kDequantizedPage * 2 * llm_.head_dim * sizeof(__nv_bfloat16);
  const uint32_t room = std::max({slots_, 2 * room_, 4u});
  KVT_CHECK(uint64_t{room} * shape_.heads * tail_pages_ * kDequantizedPage <= UINT32_MAX);
  Buffer larger;
  grow(&larger, Buffer::Kind::kDevice, room * each, "keys that have no summary yet");
  if (room_ > 0) {
    must(cudaMemcpy(larger.as<void>(), tails_.as<void>(), room_ * each, cudaMemcpyDeviceToDevice),
         "copy of keys", room_ * each);
  }
  tails_ = std::move(larger);
  room_ = room;
}

void RetainedPages::clear() {
  layers_.clear();
  rows_.clear(), overlays_.clear(), saves_.clear(), sealed_.clear(), of_cuts_.clear();
  moves_.clear(), choices_.clear(), reads_.clear();
}

uint32_t RetainedPages::tail_entry(const Tail& tail, uint32_t head, uint32_t kv_entry) const {
  return ((tail.slot * shape_.heads + head) * tail_pages_ + kv_entry / kDequantizedPage % tail_pages_) *
             kDequantizedPage +
         kv_entry % kDequantizedPage;
}

void RetainedPages::add_spans(uint32_t head, uint32_t from, uint32_t to, uint32_t dequantized, bool to_tail,
                              const Tail& tail, std::vector<KvEntrySpan>* spans) const {
  KVT_CHECK(to - from / kDequantizedPage * kDequantizedPage <= tail_pages_ * kDequantizedPage);
  for (uint32_t at = from; at < to;) {
    const uint32_t count = std::min(to, (at / kDequantizedPage + 1) * kDequantizedPage) - at;
    const uint32_t mine = tail_entry(tail, head, at);
    if (to_tail) {
      spans->push_back({dequantized + at, mine, count, kBothSides});
    } else {
      spans->push_back({mine, dequantized + at, count, kBothSides});
    }
    at += count;
  }
}

void RetainedPages::add_decode(const Head& head, uint32_t kv_entry, Tail* tail) {
  Layer& layer = layers_.back();
  uint32_t& first = tail->first[head.head];
  KVT_CHECK(kv_entry + 1 - first <= tail_pages_ * kDequantizedPage);
  rows_.push_back({head.dequantized + kv_entry, tail_entry(*tail, head.head, kv_entry), 1, kBothSides});
  ++layer.rows;
  for (; first + kDequantizedPage <= kv_entry + 1; first += kDequantizedPage) {
    sealed_.push_back({tail_entry(*tail, head.head, first) / kDequantizedPage, kDequantizedPage,
                       block(head, first / kDequantizedPage)});
    ++layer.sealed;
  }
}

void RetainedPages::add_cut(const Head& head, const CompactHead& move, uint32_t past, uint32_t kv_entries,
                            uint32_t final, Tail* tail) {
  Layer& layer = layers_[head.head / llm_.kv_heads];
  uint32_t& first = tail->first[head.head];
  KVT_CHECK(first <= move.target_first && first <= past && final <= kv_entries);
  const size_t overlays = overlays_.size(), saves = saves_.size();
  add_spans(head.head, first, past, head.dequantized, false, *tail, &overlays_);
  layer.overlays += static_cast<uint32_t>(overlays_.size() - overlays);
  moves_.push_back(move);
  ++layer.moves;
  for (; first + kDequantizedPage <= final; first += kDequantizedPage) {
    of_cuts_.push_back({(head.dequantized + first) / kDequantizedPage, kDequantizedPage,
                        block(head, first / kDequantizedPage)});
    ++layer.summaries;
  }
  add_spans(head.head, first, kv_entries, head.dequantized, true, *tail, &saves_);
  layer.saves += static_cast<uint32_t>(saves_.size() - saves);
}

bool RetainedPages::chooses(uint32_t layer, uint32_t kv_entries) const {
  return layer >= spec_.layers_dense && div_ceil(kv_entries, kDequantizedPage) > budget_.slots;
}

void RetainedPages::add_choice(const Head& head, uint32_t row, uint32_t kv_entries, PackedPart part,
                               std::vector<uint32_t>* tables) {
  Layer& layer = layers_.back();
  const uint32_t pages = div_ceil(kv_entries, kDequantizedPage), end = pages - budget_.window;
  const auto put = [&](uint32_t from, uint32_t to) {
    const auto at = static_cast<uint32_t>(tables->size());
    for (uint32_t page = from; page < to; ++page) tables->push_back(block(head, page));
    return at;
  };
  ChoiceRow choice;
  choice.row = row * llm_.kv_heads + head.head % llm_.kv_heads;
  choice.candidates = end - budget_.sinks;
  choice.owners = put(budget_.sinks, end);
  PackedSequence read;
  read.q_row = row * llm_.query_heads + head.head % llm_.kv_heads * (llm_.query_heads / llm_.kv_heads);
  read.table[part] = put(0, budget_.sinks);
  choice.table = static_cast<uint32_t>(tables->size());
  tables->resize(tables->size() + budget_.selectable);
  put(end, pages);
  const uint32_t length = budget_.sinks + budget_.selectable + budget_.window;
  read.tokens[part] = (length - 1) * kDequantizedPage + (kv_entries - 1) % kDequantizedPage + 1;
  choices_.push_back(choice);
  reads_.push_back(read);
  ++layer.choices;
  layer.candidates = std::max(layer.candidates, choice.candidates);
}

void RetainedPages::add_to(DeviceLists* lists) {
  at_ = {lists->add(rows_),    lists->add(overlays_), lists->add(saves_),   lists->add(sealed_),
         lists->add(of_cuts_), lists->add(moves_),    lists->add(choices_), lists->add(reads_)};
  uint64_t most = 0;
  for (const Layer& layer : layers_)
    most = std::max(most, uint64_t{layer.choices} * ((layer.candidates + 3) / 4 * 4));
  const uint32_t group = llm_.query_heads / llm_.kv_heads;
  grow(&scores_, Buffer::Kind::kDevice, most * group * sizeof(float), "scores of pages");
}

template <typename T>
const T* RetainedPages::part(const DeviceLists& lists, const ListAt<T>& at, uint32_t Layer::*count,
                             uint32_t layer) const {
  uint32_t before = 0;
  for (uint32_t l = 0; l < layer; ++l) before += layers_[l].*count;
  return lists.at(at) + before;
}

void RetainedPages::copy(const KvEntrySpan* spans, uint32_t count, const __nv_bfloat16* source,
                         __nv_bfloat16* target, cudaStream_t stream) const {
  if (count == 0) return;
  ConvertArgs args;
  args.spans = spans, args.count = count;
  args.shape.head_dim = llm_.head_dim;
  args.kv_heads = 1, args.dequantized_page_tokens = kDequantizedPage;
  must(copy_entries(args, source, target, stream), "copy_entries", 0,
       [&] { return fmt::format("{} spans", count); });
}

void RetainedPages::summarise(const SummaryPage* pages, uint32_t count, const __nv_bfloat16* pool,
                              cudaStream_t stream) const {
  if (count == 0) return;
  SummaryArgs args;
  args.pool = pool, args.pages = pages, args.out = summaries_.layer(0), args.count = count;
  args.page_tokens = kDequantizedPage, args.head_dim = llm_.head_dim, args.kind = kind_of(spec_.summary);
  must(summarise_pages(args, stream), "summarise_pages", 0, [&] { return fmt::format("{} pages", count); });
}

void RetainedPages::keep_rows(uint32_t layer, const DeviceLists& lists, const PackedHeads& heads,
                              cudaStream_t stream) const {
  const Layer& mine = layers_[layer];
  auto* const tails = tails_.as<__nv_bfloat16>();
  copy(part(lists, at_.rows, &Layer::rows, layer), mine.rows, heads.pool(), tails, stream);
  summarise(part(lists, at_.sealed, &Layer::sealed, layer), mine.sealed, tails, stream);
}

void RetainedPages::choose(uint32_t layer, const DeviceLists& lists, uint32_t* tables, const __nv_bfloat16* q,
                           cudaStream_t stream) {
  const Layer& mine = layers_[layer];
  if (mine.choices == 0) return;
  ChoiceShape shape = choice_shape(llm_, spec_, 1, budget_.selectable);
  shape.score_stride = (mine.candidates + 3) / 4 * 4;
  ChoiceArgs args;
  args.rows = part(lists, at_.choices, &Layer::choices, layer), args.count = mine.choices;
  args.lists = tables, args.tables = tables;
  args.summaries = summaries_.layer(0), args.q = q, args.scores = scores_.as<float>();
  const auto text = [&] { return fmt::format("{} heads, {} pages at most", mine.choices, mine.candidates); };
  must(score_pages(shape, args, stream), "score_pages", 0, text);
  must(choose_pages(shape, args, stream), "choose_pages", 0, text);
}

void RetainedPages::attend(uint32_t layer, const DeviceLists& lists, const uint32_t* tables,
                           const PackedHeads& heads, const LayerRows& tensors, cudaStream_t stream) const {
  heads.attend(tables, part(lists, at_.reads, &Layer::choices, layer), layers_[layer].choices, 1, tensors,
               stream);
}

void RetainedPages::cut(uint32_t layer, const DeviceLists& lists, const PackedHeads& heads,
                        const uint32_t* retained, cudaStream_t stream) const {
  const Layer& mine = layers_[layer];
  if (mine.moves == 0) return;
  auto* const tails = tails_.as<__nv_bfloat16>();
  copy(part(lists, at_.overlays, &Layer::overlays, layer), mine.overlays, tails, heads.pool(), stream);
  CompactArgs args{heads.dequantized(), heads.pool(), nullptr, part(lists, at_.moves, &Layer::moves, layer),
                   retained};
  args.count = mine.moves;
  must(compact_entries(args, stream), "compact_entries", 0,
       [&] { return fmt::format("{} heads", mine.moves); });
  summarise(part(lists, at_.of_cuts, &Layer::summaries, layer), mine.summaries, heads.pool(), stream);
  copy(part(lists, at_.saves, &Layer::saves, layer), mine.saves, heads.pool(), tails, stream);
}

}  // namespace kvtwin::cuda
