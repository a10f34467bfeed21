// The producer warps of the packed decode kernel: they start all copies.
//
// Each lane fills the ring of one consumer warp; page numbers are loaded one block ahead. Starting a copy
// takes 60 dependent instructions, a tenth of the time of a consumer that does it itself. A single producer
// warp is too slow, because its lanes wait for one another; four suffice.

#ifndef KVTWIN_KERNELS_PACKED_PACKED_READER_CUH_
#define KVTWIN_KERNELS_PACKED_PACKED_READER_CUH_

#include "kernels/packed/packed_place.cuh"

namespace kvtwin::device {

// One producer lane: fills the ring of one consumer warp.
template <class Geometry>
class PackedReader {
  using Family = typename Geometry::Family;
  static constexpr uint32_t kPieces = 4;  // most pages of a block
  static constexpr bool kHasInt2 = Family::kParts >> kPartInt2 & 1,
                        kHasInt4 = Family::kParts >> kPartInt4 & 1;

 public:
  // `ring`, `full`, `empty`: shared addresses of the consumer's stages and their barriers.
  __device__ PackedReader(const PackedDecodeShape& shape, const PackedDecodeArgs& args, uint32_t ring,
                          uint32_t full, uint32_t empty)
      : shape_(shape), args_(args), ring_(ring), full_(full), empty_(empty) {}

  __device__ void start(const PackedSplit& split) {
    at_.start(split);
    end_ = split.end;
    open_part();
  }
  __device__ bool done() const { return at_.position >= end_; }

  // Starts the copies of the next stage if it is empty; returns whether it was. REQUIRES: not done.
  __device__ __forceinline__ bool fill() {
    if (!barrier_test(empty_ + 8 * slot_, parity_ ^ 1)) return false;
    const uint32_t bar = full_ + 8 * slot_, target = ring_ + slot_ * Geometry::kSlot;
    if (at_.tokens == 0) {
      barrier_arrive(bar);
    } else if (kHasInt2 && at_.part == kPartInt2) {
      copy<typename Family::Int2>(target, bar);
    } else if (kHasInt4 && at_.part == kPartInt4) {
      copy<typename Family::Int4>(target, bar);
    } else {
      copy<typename Family::Wide>(target, bar);
    }
    if (++slot_ == Geometry::kSlots) slot_ = 0, parity_ ^= 1;
    values_ = !values_;
    if (!values_) advance();
    return true;
  }

 private:
  // Sets up the constants of a part: its page size, and the offset of its head's column.
  __device__ void open_part() {
    const uint32_t part = at_.part;
    const uint32_t page = part == 0   ? shape_.page_tokens[0]
                          : part == 1 ? shape_.page_tokens[1]
                                      : shape_.page_tokens[2];
    const void* const pool = part == 0 ? args_.pool[0] : part == 1 ? args_.pool[1] : args_.pool[2];
    shift_ = 31 - __clz(page);
    const uint32_t bytes = part == 0   ? page_bytes<typename Family::Int2>(page)
                           : part == 1 ? page_bytes<typename Family::Int4>(page)
                                       : page_bytes<typename Family::Wide>(page);
    column_ = static_cast<const char*>(pool) + uint64_t{at_.column} * bytes;
    stride_ = shape_.heads_per_page * bytes;
    load_pages();
  }
  template <class Format>
  static __device__ __forceinline__ uint32_t page_bytes(uint32_t page) {
    return Format::key_bytes(page) + Format::value_bytes(page);
  }
  // Loads the page numbers of this block, one block before they are used.
  __device__ void load_pages() {
    if (at_.tokens == 0) return;
    const uint32_t tokens = at_.rules().tokens(at_.part), first = at_.block * tokens >> shift_;
    pieces_ = min(((tokens - 1) >> shift_) + 1, ((at_.tokens - 1) >> shift_) + 1 - first);
#pragma unroll
    for (uint32_t i = 0; i < kPieces; ++i) {
      if (i < pieces_) number_[i] = __ldg(args_.pages + at_.table + first + i);
    }
  }
  __device__ void advance() {
    at_.position += at_.cost();
    if (done()) return;
    if (++at_.block < at_.blocks) return load_pages();
    const uint32_t position = at_.position;
    if (!at_.open(args_.table, at_.sequence, at_.part + 1)) at_.open(args_.table, at_.sequence + 1, 0);
    at_.position = position;
    open_part();
  }

  // Sets the byte count of the stage. Masks of live KV entries, if any, come with the values.
  __device__ __forceinline__ void expect(uint32_t bytes, uint32_t target, uint32_t bar) {
    const uint32_t* live = nullptr;
    if constexpr (Geometry::kMasked) {
      if (values_) live = at_.part == 0 ? args_.live[0] : at_.part == 1 ? args_.live[1] : args_.live[2];
    }
    if (live == nullptr) return barrier_arrive_expecting(bar, bytes);
    barrier_arrive_expecting(bar, bytes + 16 * pieces_);
    for (uint32_t i = 0; i < pieces_; ++i) {
      const uint32_t number = i == 0 ? number_[0] : i == 1 ? number_[1] : i == 2 ? number_[2] : number_[3];
      const uint64_t block = uint64_t{number} * shape_.heads_per_page + at_.column;
      copy_bulk(target + Geometry::kLive + 16 * i, live + 4 * block, 16, bar);
    }
  }

  template <class Format>
  __device__ __forceinline__ void copy(uint32_t target, uint32_t bar) {
    constexpr uint32_t kTokens = Format::kTokens;
    const uint32_t page = 1u << shift_, kv_entries = min(page, kTokens),
                   inside = at_.block * kTokens & (page - 1);
    const uint32_t each = values_ ? Format::value_bytes(kv_entries) : Format::key_bytes(kv_entries);
    const uint32_t offset =
        values_ ? Format::key_bytes(page) + Format::value_bytes(inside) : Format::key_bytes(inside);
    expect(pieces_ * each, target, bar);
#pragma unroll
    for (uint32_t i = 0; i < kPieces; ++i) {
      if (i < pieces_) {
        copy_bulk_once(target + i * each, column_ + uint64_t{number_[i]} * stride_ + offset, each, bar);
      }
    }
  }

  const PackedDecodeShape& shape_;
  const PackedDecodeArgs& args_;
  const uint32_t ring_, full_, empty_;
  PackedPlace<Family> at_;
  uint32_t end_ = 0, shift_ = 0, stride_ = 0, pieces_ = 0, number_[kPieces] = {};
  const char* column_ = nullptr;
  uint32_t slot_ = 0, parity_ = 0;
  bool values_ = false;
};

}  // namespace kvtwin::device

#endif  // KVTWIN_KERNELS_PACKED_PACKED_READER_CUH_
