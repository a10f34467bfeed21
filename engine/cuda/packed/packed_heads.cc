#include "engine/cuda/packed/packed_heads.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "engine/base/check.h"
#include "engine/cuda/device/cuda_check.h"
#include "engine/cuda/packed/packed_attention.h"
#include "engine/cuda/row_attention.h"
#include "kernels/attention/attention_decode.h"

namespace kvtwin::cuda {
namespace {

Result<Buffer> device_buffer(uint64_t bytes, const char* what, const std::string& shape) {
  Result<Buffer> made = Buffer::make(Buffer::Kind::kDevice, bytes, what, shape);
  if (!made) made.error().hint = "give fewer: --set=memory.gpu_pages=N";
  return made;
}

PackedDecodeShape decode_shape(const LlmSpec& llm, const PackedHeadsShape& of) {
  PackedDecodeShape out;
  out.layout = of.format == Format::kFp4 ? PackedLayout::kFp4 : PackedLayout::kRows;
  out.head_dim = llm.head_dim, out.group = llm.query_heads / llm.kv_heads;
  out.heads_per_page = of.columns;
  for (uint32_t& page : out.page_tokens) page = 128;  // of parts without entries
  out.page_tokens[*PackedAttention::part_of(of.format)] = of.page_tokens;
  if (of.format == Format::kInt4) out.scale_group = of.group;
  return out;
}

}  // namespace

Result<PackedHeads> PackedHeads::make(const LlmSpec* llm, const PackedHeadsShape& shape) {
  PackedHeads out;
  out.llm_ = llm, out.shape_ = shape;
  KVT_CHECK(uint64_t{shape.pages} * shape.columns * shape.page_tokens <= UINT32_MAX);
  const uint64_t page_size =
      page_bytes(shape.format, {shape.page_tokens, llm->head_dim, shape.group}) * shape.columns;
  Result<DevicePages> packed = DevicePages::make_packed(page_size, 1, shape.pages, shape.pages_host);
  if (!packed) return tl::unexpected<Error>(packed.error());
  out.packed_ = std::move(*packed);
  constexpr uint64_t kEntries = 64;  // which begin with pages of their own; it grows
  const uint64_t kv_entries = (shape.rows + kEntries * kDequantizedPage) * llm->kv_heads;
  if (Result<void> ok = out.allocate_dequantized(kv_entries); !ok) return tl::unexpected<Error>(ok.error());
  if (Result<void> ok = out.make_decodes(); !ok) return tl::unexpected<Error>(ok.error());
  return out;
}

Result<void> PackedHeads::allocate_dequantized(uint64_t kv_entries) {
  dequantized_ = Buffer(), iota_ = Buffer();  // before more is asked for
  capacity_ = uint64_t{div_ceil(kv_entries, uint64_t{kDequantizedPage})} * kDequantizedPage;
  KVT_CHECK(capacity_ <= UINT32_MAX);
  const std::string shape = fmt::format("{} KV entries of one KV head of {}", capacity_, llm_->head_dim);
  Result<Buffer> dequantized = device_buffer(capacity_ * 2 * llm_->head_dim * sizeof(__nv_bfloat16),
                                             "unpacked KV entries of one layer", shape);
  if (!dequantized) return tl::unexpected<Error>(dequantized.error());
  dequantized_ = std::move(*dequantized);
  Result<Buffer> iota = device_buffer(capacity_ * sizeof(uint32_t), "tables of unpacked KV entries", shape);
  if (!iota) return tl::unexpected<Error>(iota.error());
  iota_ = std::move(*iota);
  std::vector<uint32_t> numbers(capacity_);
  std::iota(numbers.begin(), numbers.end(), 0);
  return check(cudaMemcpy(iota_.as<uint32_t>(), numbers.data(), iota_.bytes(), cudaMemcpyHostToDevice),
               "copy of tables", shape, iota_.bytes());
}

bool PackedHeads::fuses(const LlmSpec& llm, const PackedHeadsShape& shape) {
  return packed_shape_is_possible(decode_shape(llm, shape));
}

Result<void> PackedHeads::make_decodes() {
  int sms = 0;
  if (Result<void> ok = check(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0),
                              "cudaDeviceGetAttribute", "multiprocessors");
      !ok)
    return ok;
  PackedDecodeShape shape = decode_shape(*llm_, shape_);
  if (!packed_shape_is_possible(shape)) return {};
  shape.ctas = static_cast<uint32_t>(sms);
  shape.sequences = shape_.rows * llm_->kv_heads;
  const std::string rows = fmt::format("{} rows", shape_.rows);
  Result<Buffer> plan = device_buffer(packed_plan_bytes(shape), "the plan of packed attention", rows);
  if (!plan) return tl::unexpected<Error>(plan.error());
  Result<Buffer> workspace = device_buffer(packed_workspace_bytes(shape), "packed attention", rows);
  if (!workspace) return tl::unexpected<Error>(workspace.error());
  plan_ = std::move(*plan), workspace_ = std::move(*workspace);
  decode_ = shape;
  return {};
}

PackedPart PackedHeads::part() const { return *PackedAttention::part_of(shape_.format); }

uint32_t PackedHeads::open(uint32_t kv_entries) {
  const uint64_t first = used_;
  used_ += uint64_t{div_ceil(kv_entries, kDequantizedPage)} * kDequantizedPage;
  most_ = std::max(most_, used_);
  KVT_CHECK(used_ <= UINT32_MAX);
  return static_cast<uint32_t>(first);
}

bool PackedHeads::grow_dequantized() {
  if (most_ <= capacity_) return false;
  must(cudaDeviceSynchronize(), "wait for unpacked KV entries", 0, [] { return std::string(); });
  if (Result<void> ok = allocate_dequantized(most_ + most_ / 2); !ok) fail(ok.error().text());
  return true;
}

ConvertArgs PackedHeads::convert(const KvEntrySpan* spans, uint32_t count) const {
  ConvertArgs out;
  out.spans = spans, out.count = count;
  out.format = shape_.format, out.shape = {shape_.page_tokens, llm_->head_dim, shape_.group};
  out.kv_heads = 1, out.dequantized_page_tokens = kDequantizedPage;
  return out;
}

void PackedHeads::pack(const KvEntrySpan* spans, uint32_t count, cudaStream_t stream) const {
  if (count == 0) return;
  must(pack_entries(convert(spans, count), pool(), packed_.packed_layer(0), stream), "pack_entries", 0,
       [&] { return fmt::format("{} spans", count); });
}

void PackedHeads::unpack(const KvEntrySpan* spans, uint32_t count, cudaStream_t stream) const {
  if (count == 0) return;
  must(unpack_entries(convert(spans, count), packed_.packed_layer(0), pool(), stream), "unpack_entries", 0,
       [&] { return fmt::format("{} spans", count); });
}

void PackedHeads::move(const uint32_t* tables, float* scorer_state, const CompactHead* heads,
                       const uint32_t* retained, uint32_t count, cudaStream_t stream) const {
  CompactPackedArgs args;
  args.kv_entries = {nullptr, tables, shape_.page_tokens, shape_.columns, llm_->head_dim, false};
  args.format = shape_.format, args.group = shape_.group;
  args.pool = packed_.packed_layer(0), args.scorer_state = scorer_state;
  args.heads = heads, args.retained = retained, args.count = count;
  must(compact_packed_entries(args, stream), "compact_packed_entries", 0,
       [&] { return fmt::format("{} heads", count); });
}

void PackedHeads::poison_dequantized(cudaStream_t stream) const {
  must(cudaMemsetAsync(dequantized_.as<void>(), 0xff, dequantized_.bytes(), stream),
       "poisoning of unpacked KV entries", dequantized_.bytes(), [] { return std::string(); });
}

void PackedHeads::attend(const uint32_t* pages, const PackedSequence* table, uint32_t count,
                         uint32_t heads_per_page, const LayerRows& tensors, cudaStream_t stream) const {
  if (count == 0) return;
  const auto shape = [&] { return fmt::format("{} sequences, head_dim {}", count, llm_->head_dim); };
  PackedDecodeShape now = decode_;
  now.sequences = count, now.heads_per_page = heads_per_page;
  PackedDecodeArgs args;
  args.pool[part()] = packed_.packed_layer(0);
  args.pages = pages, args.table = table;
  args.scale = 1 / std::sqrt(static_cast<float>(llm_->head_dim));
  args.plan = plan_.as<void>(), args.workspace = workspace_.as<void>();
  args.q = tensors.q, args.out = tensors.out;
  must(cudaMemsetAsync(workspace_.as<void>(), 0, decode_counter_bytes(count), stream),
       "counters of packed attention", decode_counter_bytes(count), shape);
  must(plan_packed_decode(now, args, stream), "plan_packed_decode", 0, shape);
  must(packed_decode(now, args, stream), "packed_decode", 0, shape);
}

}  // namespace kvtwin::cuda
