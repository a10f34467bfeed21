#include "engine/cuda/device/step_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "engine/cuda/device/cuda_check.h"

namespace kvtwin::cuda {
namespace {

constexpr uint64_t kAlignment = 256;

template <typename T>
uint64_t space_of(const std::vector<T>& list) {
  return (list.size() * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

void StepRows::clear() {
  tokens.clear();
  positions.clear();
  slots.clear();
  sampling.clear();
  decodes.clear();
  chunks.clear();
  others.clear();
  pages.clear();
  padding = 0;
  decode_entries = chunk_entries = 0;
}

void StepGraphKey::add(const DeviceRows& of) {
  for (const void* const list : {static_cast<const void*>(of.tokens), static_cast<const void*>(of.positions),
                                 static_cast<const void*>(of.slots), static_cast<const void*>(of.sampling),
                                 static_cast<const void*>(of.decodes), static_cast<const void*>(of.chunks),
                                 static_cast<const void*>(of.others), static_cast<const void*>(of.pages)})
    add(list);
  for (const uint32_t count :
       {of.rows, of.padded_rows, of.samples, of.decodes_count, of.chunks_count, of.other_rows})
    add(uint64_t{count});
}

Result<RowsUpload> RowsUpload::make(uint64_t bytes) {
  RowsUpload out;
  if (Result<void> ok = out.reserve(bytes); !ok) return tl::unexpected<Error>(ok.error());
  return out;
}

Result<void> RowsUpload::reserve(uint64_t bytes) {
  if (bytes <= staging_.bytes()) return {};
  bytes = std::max(bytes, 2 * staging_.bytes());
  Result<Buffer> staging = Buffer::make(Buffer::Kind::kPinned, bytes, "work lists", "of a step");
  if (!staging) return tl::unexpected<Error>(staging.error());
  Result<Buffer> device = Buffer::make(Buffer::Kind::kDevice, bytes, "work lists", "of a step");
  if (!device) return tl::unexpected<Error>(device.error());
  staging_ = std::move(*staging);
  device_ = std::move(*device);
  return {};
}

template <typename T>
const T* RowsUpload::put(const std::vector<T>& list) {
  const uint64_t at = used_;
  if (!list.empty()) std::memcpy(staging_.as<char>(at), list.data(), list.size() * sizeof(T));
  used_ += space_of(list);
  return device_.as<const T>(at);
}

DeviceRows RowsUpload::send(const StepRows& rows, cudaStream_t stream) {
  const uint64_t bytes = space_of(rows.tokens) + space_of(rows.positions) + space_of(rows.slots) +
                         space_of(rows.sampling) + space_of(rows.decodes) + space_of(rows.chunks) +
                         space_of(rows.others) + space_of(rows.pages);
  if (Result<void> ok = reserve(bytes); !ok) fail(ok.error().text());
  used_ = 0;
  DeviceRows out;
  out.tokens = put(rows.tokens);
  out.positions = put(rows.positions);
  out.slots = put(rows.slots);
  out.sampling = put(rows.sampling);
  out.decodes = put(rows.decodes);
  out.chunks = put(rows.chunks);
  out.others = put(rows.others);
  out.pages = put(rows.pages);
  out.rows = static_cast<uint32_t>(rows.positions.size());
  out.padded_rows = static_cast<uint32_t>(rows.tokens.size());
  out.samples = static_cast<uint32_t>(rows.sampling.size());
  out.decodes_count = static_cast<uint32_t>(rows.decodes.size());
  out.chunks_count = static_cast<uint32_t>(rows.chunks.size());
  out.other_rows = static_cast<uint32_t>(rows.others.size());
  must(cudaMemcpyAsync(device_.as<char>(), staging_.as<char>(), used_, cudaMemcpyHostToDevice, stream),
       "copy of a step's work lists", used_, [&] { return fmt::format("{} rows", out.rows); });
  return out;
}

}  // namespace kvtwin::cuda
