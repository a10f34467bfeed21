#include <algorithm>
#include <vector>

#include "kernels/cache_ops/copied_recall.h"

namespace kvtwin {
namespace {

using kernels::HostPageLayout;

constexpr uint32_t kThreads = 256;

// One CTA for each staged page of a head, sixteen bytes for each thread and turn.
__global__ void __launch_bounds__(kThreads)
    convert_kernel(const __grid_constant__ HostPool host, __nv_bfloat16* pool, HostPageLayout layout,
                   const __nv_bfloat16* staging, const RecallMove* moves) {
  const uint32_t block = moves[blockIdx.x].block;
  const uint32_t chunks = host.head_dim / 8, rows = 2 * host.page_tokens, all = rows * chunks;
  const auto* const from = reinterpret_cast<const uint4*>(staging) + size_t{blockIdx.x} * all;
  auto* const to = reinterpret_cast<uint4*>(pool);
  const uint32_t page = block / host.kv_heads, head = block % host.kv_heads;
  for (uint32_t i = threadIdx.x; i < all; i += kThreads) {
    const size_t row = size_t{page} * rows + i / chunks;
    to[layout == HostPageLayout::kHnd ? size_t{block} * all + i
                                      : (row * host.kv_heads + head) * chunks + i % chunks] =
        __ldcs(from + i);
  }
}

bool right(const HostPool& host) {
  return host.page_tokens > 0 && host.kv_heads > 0 && host.head_dim > 0 && host.head_dim % 8 == 0;
}

// Copies without order between them.
struct Batch {
  std::vector<void*> targets;
  std::vector<const void*> sources;
  std::vector<size_t> sizes;

  void add(__nv_bfloat16* to, const __nv_bfloat16* from, uint64_t numbers) {
    targets.push_back(to), sources.push_back(from), sizes.push_back(numbers * sizeof *to);
  }
  cudaError_t start(cudaStream_t stream) {
    if (sizes.size() == 1)
      return cudaMemcpyAsync(targets[0], sources[0], sizes[0], cudaMemcpyHostToDevice, stream);
    cudaMemcpyAttributes attributes{};
    attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
    attributes.flags = cudaMemcpyFlagPreferOverlapWithCompute;
    size_t first = 0;
    return cudaMemcpyBatchAsync(targets.data(), sources.data(), sizes.data(), sizes.size(), &attributes,
                                &first, 1, stream);
  }
};

// HND: where a head's page begins; NHD: its first row, which is followed by those of other heads.
const __nv_bfloat16* on_host(const HostPool& host, const RecallMove& move) {
  return host.pages + move.page * host.page_stride +
         move.head * (host.layout == HostPageLayout::kHnd ? host.head_numbers() : host.head_dim);
}

cudaError_t copy_rows(const HostPool& host, __nv_bfloat16* pool, const RecallMove& move,
                      cudaStream_t stream) {
  const size_t row = host.head_dim * sizeof *pool;
  return cudaMemcpy2DAsync(pool + move.block * host.head_numbers(), row, on_host(host, move),
                           row * host.kv_heads, row, size_t{2} * host.page_tokens, cudaMemcpyHostToDevice,
                           stream);
}

// One part of a head's pages, to a staging buffer and from there to its blocks.
cudaError_t stage(const StreamedRecall& recall, uint32_t buffer, const RecallMove* moves, uint32_t count) {
  Batch batch;
  for (uint32_t i = 0; i < count && !recall.batched; ++i) {
    const uint64_t numbers = recall.host.head_numbers();
    const cudaError_t error =
        cudaMemcpyAsync(recall.staging[buffer] + i * numbers, on_host(recall.host, moves[i]),
                        numbers * sizeof(__nv_bfloat16), cudaMemcpyHostToDevice, recall.streams[buffer]);
    if (error != cudaSuccess) return error;
  }
  for (uint32_t i = 0; i < count && recall.batched; ++i) {
    batch.add(recall.staging[buffer] + i * recall.host.head_numbers(), on_host(recall.host, moves[i]),
              recall.host.head_numbers());
  }
  if (recall.batched) {
    if (const cudaError_t error = batch.start(recall.streams[buffer]); error != cudaSuccess) return error;
  }
  convert_kernel<<<count, kThreads, 0, recall.streams[buffer]>>>(recall.host, recall.pool, recall.pool_layout,
                                                                 recall.staging[buffer], moves);
  return cudaGetLastError();
}

cudaError_t wait_for(cudaStream_t waits, cudaEvent_t event, cudaStream_t other) {
  const cudaError_t error = cudaEventRecord(event, other);
  return error != cudaSuccess ? error : cudaStreamWaitEvent(waits, event);
}

}  // namespace

cudaError_t copy_recalled(const HostPool& host, HostCopy copy, __nv_bfloat16* pool,
                          std::span<const RecallMove> moves, cudaStream_t stream) {
  if (!right(host) || copy == HostCopy::kKernel) return cudaErrorInvalidValue;
  if (moves.empty()) return cudaSuccess;
  const bool rows = host.layout == HostPageLayout::kNhd;
  Batch batch;
  for (const RecallMove& move : moves) {
    if (rows && copy == HostCopy::kStrided) {
      if (const cudaError_t error = copy_rows(host, pool, move, stream); error != cudaSuccess) return error;
      continue;
    }
    __nv_bfloat16* const to = pool + move.block * host.head_numbers();
    const uint32_t pieces = rows ? 2 * host.page_tokens : 1;
    const uint64_t numbers = host.head_numbers() / pieces;
    for (uint32_t i = 0; i < pieces; ++i)
      batch.add(to + i * numbers, on_host(host, move) + i * numbers * host.kv_heads, numbers);
  }
  return batch.sizes.empty() ? cudaSuccess : batch.start(stream);
}

cudaError_t stream_recalled(const StreamedRecall& recall, const RecallMove* moves,
                            std::span<const uint32_t> heads) {
  if (!right(recall.host) || recall.host.layout != HostPageLayout::kHnd || recall.staged_max == 0 ||
      recall.buffers < 1 || recall.buffers > 2)
    return cudaErrorInvalidValue;
  if (heads.empty()) return cudaSuccess;
  const bool two = recall.buffers == 2;
  cudaError_t error = two ? wait_for(recall.streams[1], recall.begun, recall.streams[0]) : cudaSuccess;
  uint32_t parts = 0;
  for (const uint32_t head : heads) {
    for (uint32_t done = 0; done < head && error == cudaSuccess; done += recall.staged_max) {
      const uint32_t count = std::min(recall.staged_max, head - done);
      error = stage(recall, parts++ % recall.buffers, moves, count);
      moves += count;
    }
  }
  if (!two || error != cudaSuccess) return error;
  return wait_for(recall.streams[0], recall.ended, recall.streams[1]);
}

}  // namespace kvtwin
