#include "engine/cuda/compression/kv_entry_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/base/check.h"
#include "engine/cuda/device/cuda_check.h"

namespace kvtwin::cuda {

Result<KvEntryMemory> KvEntryMemory::make(const KvMemory& memory, const LlmSpec& llm,
                                          const cpu::RequestTableShape* shape, uint32_t scratch,
                                          const cpu::KvEntryFormat& format) {
  KvEntryMemory out;
  out.page_tokens_ = memory.page_tokens;
  out.columns_ = shape->groups.heads_per_group();
  out.head_dim_ = llm.head_dim;
  out.pages_gpu_ = memory.pages_gpu;
  out.scratch_ = scratch;
  uint32_t lanes = 1;
  for (uint32_t head = 0; head < shape->groups.heads(); ++head) {
    const uint32_t first = head / llm.kv_heads * llm.kv_heads;
    uint32_t lane = 0;
    for (uint32_t other = first; other < head; ++other)
      lane += shape->groups.column_of(other) == shape->groups.column_of(head);
    out.lanes_.push_back(lane);
    lanes = std::max(lanes, lane + 1);
  }
  out.pages_ = memory.pages_gpu + lanes * scratch;
  const auto make = [&](uint64_t bytes, const char* what) {
    Result<Buffer> made = Buffer::make(Buffer::Kind::kDevice, bytes, what,
                                       fmt::format("{} pages of {} bytes, {} of them scratch", out.pages_,
                                                   out.page_bytes(), lanes * scratch));
    if (!made) made.error().hint = "give fewer: --set=memory.gpu_pages=N";
    return made;
  };
  if (format.format == Format::kBf16) {
    Result<Buffer> pool = make(out.pages_ * out.page_bytes(), "KV pages");
    if (!pool) return tl::unexpected<Error>(pool.error());
    out.pool_ = std::move(*pool);
  } else {
    Result<PackedHeads> packed = PackedHeads::make(
        &llm, {format.format, format.group, memory.page_tokens, out.columns_, out.pages_, memory.rows_max});
    if (!packed) return tl::unexpected<Error>(packed.error());
    out.packed_.emplace(std::move(*packed));
  }
  Result<Buffer> scorer_state =
      make(uint64_t{out.pages_} * out.columns_ * out.page_tokens_ * sizeof(float), "marks of KV entries");
  if (!scorer_state) return tl::unexpected<Error>(scorer_state.error());
  out.scorer_state_ = std::move(*scorer_state);
  if (Result<void> ok = check(cudaMemset(out.scorer_state_.as<void>(), 0, out.scorer_state_.bytes()),
                              "cudaMemset", "marks of KV entries", out.scorer_state_.bytes());
      !ok)
    return tl::unexpected<Error>(ok.error());
  return out;
}

uint32_t KvEntryMemory::scratch(uint32_t head, uint32_t index) const {
  KVT_CHECK(index < scratch_);
  return pages_gpu_ + lanes_[head] * scratch_ + index;
}

void KvEntryMemory::poison(PageId page, cudaStream_t stream) const {
  KVT_CHECK(raw(page) < pages_gpu_);
  const auto shape = [&] { return fmt::format("page {}", raw(page)); };
  if (packed_) {
    packed_->poison(raw(page), stream);
  } else {
    must(cudaMemsetAsync(pool_.as<char>(raw(page) * page_bytes()), 0xff, page_bytes(), stream),
         "poisoning of a page", page_bytes(), shape);
  }
  must(cudaMemsetAsync(scorer_state_.as<char>(raw(page) * state_bytes()), 0xff, state_bytes(), stream),
       "poisoning of marks", state_bytes(), shape);
}

void KvEntryMemory::copy(PageId source, PageId target, cudaStream_t stream) const {
  KVT_CHECK(raw(source) < pages_gpu_ && raw(target) < pages_gpu_);
  const auto move = [&](const Buffer& of, uint64_t bytes) {
    must(cudaMemcpyAsync(of.as<char>(raw(target) * bytes), of.as<char>(raw(source) * bytes), bytes,
                         cudaMemcpyDeviceToDevice, stream),
         "copy of a page", bytes, [&] { return fmt::format("page {} to {}", raw(source), raw(target)); });
  };
  if (packed_) {
    packed_->copy(raw(source), raw(target), stream);
  } else {
    move(pool_, page_bytes());
  }
  move(scorer_state_, state_bytes());
}

}  // namespace kvtwin::cuda
