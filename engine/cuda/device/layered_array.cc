#include "engine/cuda/device/layered_array.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/base/check.h"
#include "engine/cuda/device/cuda_check.h"

namespace kvtwin::cuda {

Result<LayeredArray> LayeredArray::make(uint32_t layers, uint64_t each, uint32_t count, const char* what) {
  LayeredArray out;
  out.layers_ = layers, out.each_ = each, out.what_ = what;
  if (Result<void> ok = out.grow(std::max(count, 1u)); !ok) return tl::unexpected<Error>(ok.error());
  return out;
}

Result<void> LayeredArray::grow(uint32_t count) {
  const uint64_t width = each_ * count;
  if (width == 0) return {};
  Result<Buffer> made = Buffer::make(Buffer::Kind::kDevice, width * layers_, what_,
                                     fmt::format("{} layers of {}", layers_, count));
  if (!made) return tl::unexpected<Error>(made.error());
  must(cudaDeviceSynchronize(), "wait for an array that grows");
  if (count_ > 0) {
    must(cudaMemcpy2D(made->as<char>(), width, elements_.as<char>(), each_ * count_, each_ * count_, layers_,
                      cudaMemcpyDeviceToDevice),
         "copy of an array that grows", width);
    must(cudaDeviceSynchronize(), "copy of an array that grows");
  }
  elements_ = std::move(*made);
  count_ = count;
  return {};
}

void LayeredArray::reserve(uint32_t count) {
  if (count <= count_) return;
  if (Result<void> ok = grow(std::max(count, 2 * count_)); !ok) fail(ok.error().text());
}

void LayeredArray::put(uint32_t layer, uint32_t element, uint64_t offset, const void* from, uint64_t bytes,
                       cudaStream_t stream) const {
  KVT_CHECK(element < count_ && offset + bytes <= each_);
  char* const to = elements_.as<char>((uint64_t{layer} * count_ + element) * each_ + offset);
  must(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream), what_, bytes,
       [&] { return fmt::format("layer {}, element {}", layer, element); });
}

}  // namespace kvtwin::cuda
