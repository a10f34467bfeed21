#include "engine/cuda/packed/staged_entries.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/base/check.h"
#include "engine/cuda/caches.h"
#include "engine/cuda/device/cuda_check.h"

namespace kvtwin::cuda {
namespace {

std::string spans_shape(uint32_t spans) { return fmt::format("{} spans", spans); }

}  // namespace

uint64_t unpacked_expected(const LlmSpec& llm, const KvMemory& memory, bool decodes_packed,
                           uint32_t each_decode) {
  const uint64_t all = uint64_t{memory.pages_gpu} * memory.page_tokens;
  if (!decodes_packed || llm.context_window == 0) return all;
  return std::min(all, 2 * uint64_t{llm.context_window} + uint64_t{memory.requests_max} * each_decode);
}

void StagedSpans::clear() {
  for (std::vector<KvEntrySpan>* const list : {&from_exact, &gathered, &packed, &unpacked, &to_exact})
    list->clear();
}

Result<StagedEntries> StagedEntries::make(const LlmSpec* llm, uint64_t kv_entries, uint32_t rows,
                                          bool poison) {
  StagedEntries out;
  out.llm_ = llm, out.rows_ = rows, out.poison_ = poison;
  // Each request starts on a new page.
  if (Result<void> ok = out.allocate(kv_entries + uint64_t{rows} * kStagedPage); !ok)
    return tl::unexpected<Error>(ok.error());
  constexpr uint64_t kLists = 16;  // of spans, each aligned
  out.upload_.reserve(uint64_t{rows} * sizeof(KvEntrySpan) + kLists * 256);
  out.lists_at_ = out.upload_.base();
  return out;
}

Result<void> StagedEntries::allocate(uint64_t kv_entries) {
  const uint64_t pages = div_ceil(kv_entries, uint64_t{kStagedPage});
  KVT_CHECK(pages * kStagedPage <= UINT32_MAX);
  Result<RowAttention> attention =
      RowAttention::make(llm_, {kStagedPage, llm_->kv_heads, static_cast<uint32_t>(pages), rows_});
  if (!attention) return tl::unexpected<Error>(attention.error());
  attention_ = std::move(*attention);
  pages_ = Buffer();  // frees before it allocates
  const uint64_t numbers = pages * kStagedPage * 2 * llm_->kv_heads * llm_->head_dim;
  Result<Buffer> made = Buffer::make(
      Buffer::Kind::kDevice, numbers * sizeof(__nv_bfloat16), "unpacked KV entries of one layer",
      fmt::format("{} KV entries of {} KV heads of {}", pages * kStagedPage, llm_->kv_heads, llm_->head_dim));
  if (!made) {
    made.error().hint = "give fewer pages: --set=memory.gpu_pages=N";
    return tl::unexpected<Error>(made.error());
  }
  pages_ = std::move(*made);
  kv_entries_ = pages * kStagedPage;
  return {};
}

void StagedEntries::clear() {
  used_ = 0;
  for (StagedSpans& spans : spans_) spans.clear();
}

uint32_t StagedEntries::open(uint32_t kv_entries) {
  const uint64_t first = used_;
  used_ += uint64_t{div_ceil(kv_entries, kStagedPage)} * kStagedPage;
  KVT_CHECK(used_ <= UINT32_MAX);
  return static_cast<uint32_t>(first);
}

void StagedEntries::add_rows(const LlmSpec& llm, uint32_t at, uint32_t position, uint32_t count,
                             StepRows* rows) {
  for (uint32_t i = 0; i < count; ++i) {
    rows->positions.push_back(position + i);
    rows->slots.push_back({(at + i) / kStagedPage * llm.kv_heads, (at + i) % kStagedPage});
  }
}

void StagedEntries::add_padding(size_t pool, StepRows* rows) {
  add_rows(*llm_, open(1), 0, 1, rows);
  spans_[pool].packed.push_back({});
  ++rows->padding;
}

void StagedEntries::add_reads(uint32_t base, uint32_t first, uint32_t context, uint32_t count,
                              StepRows* rows) const {
  const auto table = static_cast<uint32_t>(rows->pages.size());
  for (uint32_t i = 0; i < div_ceil(context + count, kStagedPage); ++i)
    rows->pages.push_back(base / kStagedPage + i);
  attention_.add(first, table, context, count, rows);
}

void StagedEntries::warm_up(uint32_t size, const StepStream& on, StepRows* rows) {
  clear();
  const uint32_t base = open(size);
  add_rows(*llm_, base, 0, size, rows);
  add_reads(base, 0, 0, 1, rows);
  if (size > 2) add_reads(base, 1, 0, 2, rows);
  send(on);
}

void StagedEntries::grow_pages() {
  if (used_ <= kv_entries_) return;
  if (Result<void> ok = allocate(used_ + used_ / 2); !ok) fail(ok.error().text());
}

void StagedEntries::send(const StepStream& on) {
  grow_pages();
  upload_.clear();
  at_.clear();
  for (const StagedSpans& spans : spans_) {
    at_.push_back({upload_.add(spans.from_exact), upload_.add(spans.gathered), upload_.add(spans.packed),
                   upload_.add(spans.unpacked), upload_.add(spans.to_exact)});
  }
  on.timer->begin(Operation::kUpload);
  upload_.send(on.stream);
}

bool StagedEntries::repeats() const {
  for (const StagedSpans& spans : spans_) {
    if (!spans.from_exact.empty() || !spans.gathered.empty() || !spans.unpacked.empty() ||
        !spans.to_exact.empty())
      return false;
  }
  return upload_.base() == lists_at_;
}

void StagedEntries::add_to(StepGraphKey* graph_key) const {
  graph_key->add(pool());
  for (const SpansAt& at : at_) {
    for (const ListAt<KvEntrySpan>& list : {at.from_exact, at.gathered, at.packed, at.unpacked, at.to_exact})
      upload_.add_to(graph_key, list);
  }
}

ConvertArgs StagedEntries::args(const ListAt<KvEntrySpan>& spans) const {
  ConvertArgs out;
  out.spans = upload_.at(spans), out.count = spans.count;
  out.shape.head_dim = llm_->head_dim;
  out.kv_heads = llm_->kv_heads, out.dequantized_page_tokens = kStagedPage;
  return out;
}

void StagedEntries::copy(const ListAt<KvEntrySpan>& spans, const __nv_bfloat16* source, __nv_bfloat16* target,
                         const char* what, cudaStream_t stream) const {
  if (spans.count == 0) return;
  must(copy_entries(args(spans), source, target, stream), what, 0, [&] { return spans_shape(spans.count); });
}

void StagedEntries::unpack(const PackedPages& from, uint32_t layer, const KvEntrySpan* spans, uint32_t count,
                           cudaStream_t stream) const {
  if (count == 0) return;
  must(unpack_entries({spans, count, from.format, from.shape, llm_->kv_heads, kStagedPage},
                      from.pages.packed_layer(layer), pool(), stream),
       "unpack_entries", 0, [&] { return spans_shape(count); });
}

void StagedEntries::pack(const PackedPages& to, uint32_t layer, const KvEntrySpan* spans, uint32_t count,
                         cudaStream_t stream) const {
  if (count == 0) return;
  must(pack_entries({spans, count, to.format, to.shape, llm_->kv_heads, kStagedPage}, pool(),
                    to.pages.packed_layer(layer), stream),
       "pack_entries", 0, [&] { return spans_shape(count); });
}

void StagedEntries::stage(uint32_t layer, const LayerRows& tensors, const DeviceRows& rows,
                          std::span<const PackedPages> pools, const ExactEntries* exact,
                          cudaStream_t stream) {
  KVT_CHECK(pools.size() <= spans_.size());
  if (poison_) {
    must(cudaMemsetAsync(pool(), 0xff, pages_.bytes(), stream), "poisoning", pages_.bytes(),
         [] { return std::string(); });
  }
  attention_.append(tensors, rows, pool(), stream);
  for (const SpansAt& at : at_) {
    if (exact != nullptr)
      copy(at.from_exact, exact->layer(layer), pool(), "copy of exact KV entries", stream);
    copy(at.gathered, pool(), pool(), "gathering of KV entries", stream);
  }
  for (size_t i = 0; i < pools.size(); ++i)
    pack(pools[i], layer, upload_.at(at_[i].packed), at_[i].packed.count, stream);
  for (size_t i = 0; i < pools.size(); ++i)
    unpack(pools[i], layer, upload_.at(at_[i].unpacked), at_[i].unpacked.count, stream);
}

bool StagedEntries::keeps() const {
  return std::any_of(at_.begin(), at_.end(), [](const SpansAt& at) { return at.to_exact.count > 0; });
}

void StagedEntries::start(const ListedOperation& one, const LayerRows& tensors, const DeviceRows& rows,
                          std::span<const PackedPages> pools, const ExactEntries* exact,
                          cudaStream_t stream) {
  if (one.kind == Operation::kAppend) return stage(one.layer, tensors, rows, pools, exact, stream);
  if (one.kind == Operation::kMove) return keep(one.layer, *exact, stream);
  attention_.start(one, tensors, rows, pool(), stream);
}

void StagedEntries::keep(uint32_t layer, const ExactEntries& exact, cudaStream_t stream) {
  for (const SpansAt& at : at_)
    copy(at.to_exact, pool(), exact.layer(layer), "keeping of exact KV entries", stream);
}

}  // namespace kvtwin::cuda
