#include "engine/cuda/device/device_pages.h"

#include <fmt/format.h>

#include <utility>

#include "engine/base/check.h"
#include "engine/cuda/device/cuda_check.h"

namespace kvtwin::cuda {

Result<DevicePages> DevicePages::make(const LlmSpec& llm, uint32_t page_tokens, uint32_t gpu, uint32_t host) {
  return make_packed(uint64_t{2} * llm.kv_heads * page_tokens * llm.head_dim * sizeof(__nv_bfloat16),
                     llm.layers, gpu, host);
}

Result<DevicePages> DevicePages::make_packed(uint64_t part_bytes, uint32_t layers, uint32_t gpu,
                                             uint32_t host) {
  DevicePages out;
  out.part_bytes_ = part_bytes;
  out.layers_ = layers;
  out.pages_gpu_ = gpu;
  out.pages_host_ = host;
  const auto tier = [&](Buffer::Kind kind, const char* what, uint32_t pages, const char* setting) {
    Result<Buffer> made = Buffer::make(kind, pages * out.page_bytes(), what,
                                       fmt::format("{} pages of {} bytes", pages, out.page_bytes()));
    if (!made) made.error().hint = fmt::format("give fewer: --set={}", setting);
    return made;
  };
  Result<Buffer> near = tier(Buffer::Kind::kDevice, "KV pages", gpu, "memory.gpu_pages=N");
  if (!near) return tl::unexpected<Error>(near.error());
  Result<Buffer> far = tier(Buffer::Kind::kPinned, "KV pages of the host tier", host, "memory.host_bytes=N");
  if (!far) return tl::unexpected<Error>(far.error());
  out.gpu_ = std::move(*near);
  out.host_ = std::move(*far);
  out.host_pages_ = out.host_.as<char>();
  out.host_page_bytes_ = out.page_bytes();
  return out;
}

void DevicePages::share_host(const DevicePages& larger) {
  KVT_CHECK(pages_host_ == 0 && page_bytes() <= larger.host_page_bytes_);
  pages_host_ = larger.pages_host_;
  host_pages_ = larger.host_pages_;
  host_page_bytes_ = larger.host_page_bytes_;
}

DevicePages::Place DevicePages::place(PageId page) const {
  const uint32_t number = raw(page);
  KVT_CHECK(number < uint64_t{pages_gpu_} + pages_host_);
  if (number < pages_gpu_) return {gpu_.as<char>(number * part_bytes_), layer_bytes()};
  return {host_pages_ + (number - pages_gpu_) * host_page_bytes_, part_bytes_};
}

void DevicePages::copy(PageId source, PageId target, cudaStream_t stream) const {
  const Place from = place(source), to = place(target);
  const auto shape = [&] {
    return fmt::format("page {} to {}, {} layers", raw(source), raw(target), layers_);
  };
  // CUDA accepts strides below 2 GiB.
  if (from.stride <= INT32_MAX && to.stride <= INT32_MAX) {
    return must(cudaMemcpy2DAsync(to.first, to.stride, from.first, from.stride, part_bytes_, layers_,
                                  cudaMemcpyDefault, stream),
                "copy of a page", page_bytes(), shape);
  }
  for (uint32_t i = 0; i < layers_; ++i) {
    must(cudaMemcpyAsync(to.first + i * to.stride, from.first + i * from.stride, part_bytes_,
                         cudaMemcpyDefault, stream),
         "copy of a page", page_bytes(), shape);
  }
}

void DevicePages::poison(PageId page, cudaStream_t stream) const {
  KVT_CHECK(raw(page) < pages_gpu_);
  const Place at = place(page);
  for (uint32_t i = 0; i < layers_; ++i) {
    must(cudaMemsetAsync(at.first + i * at.stride, 0xff, part_bytes_, stream), "poisoning of a page",
         page_bytes(), [&] { return fmt::format("page {}", raw(page)); });
  }
}

}  // namespace kvtwin::cuda
