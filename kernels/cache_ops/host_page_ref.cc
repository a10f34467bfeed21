#include <algorithm>

#include "engine/base/check.h"
#include "kernels/cache_ops/host_page.h"

namespace kvtwin::kernels {

void offload_page_ref(const KvPages& gpu, uint32_t page, const HostPage& host) {
  KVT_CHECK(gpu.kv_heads == host.kv_heads);
  for (uint32_t h = 0; h < host.kv_heads; ++h) {
    for (uint32_t t = 0; t < host.page_tokens; ++t) {
      std::copy_n(gpu.keys + gpu.at(page, h, t), host.head_dim, host.at(h, 0, t));
      std::copy_n(gpu.values + gpu.at(page, h, t), host.head_dim, host.at(h, 1, t));
    }
  }
}

uint32_t recall_head_ref(const HostPage& host, uint32_t head, float* staging) {
  const uint64_t rows = uint64_t{2} * host.page_tokens;
  if (host.layout == HostPageLayout::kHnd) {
    std::copy_n(host.at(head, 0, 0), rows * host.head_dim, staging);
    return 1;
  }
  for (uint64_t row = 0; row < rows; ++row) {
    const auto part = static_cast<uint32_t>(row / host.page_tokens);
    const auto token = static_cast<uint32_t>(row % host.page_tokens);
    std::copy_n(host.at(head, part, token), host.head_dim, staging + row * host.head_dim);
  }
  return static_cast<uint32_t>(rows);
}

void scatter_head_ref(const float* staging, uint32_t head, uint32_t page, const KvPages& gpu) {
  const uint64_t part = uint64_t{gpu.page_tokens} * gpu.head_dim;
  std::copy_n(staging, part, gpu.keys + gpu.at(page, head, 0));
  std::copy_n(staging + part, part, gpu.values + gpu.at(page, head, 0));
}

}  // namespace kvtwin::kernels
