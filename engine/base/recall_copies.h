// RecallCopies says how the pages that steps recall lie on the host, and how they are copied
// (docs/design/methods/freekv.md#recall). It decides nothing: engines carry it out, and the simulator prices
// it.

#ifndef KVTWIN_ENGINE_BASE_RECALL_COPIES_H_
#define KVTWIN_ENGINE_BASE_RECALL_COPIES_H_

#include <cstdint>

namespace kvtwin {

// One KV head's page on the host: one piece, or 2 * page_tokens of them (kernels/cache_ops/host_page.h).
enum class HostPageLayout : uint8_t { kHnd, kNhd };

// How pages come back: by the copy engine, a page of one head in one (for NHD strided) copy or a copy for
// every piece; or by a kernel that reads the host's memory and writes the page's slots. HND copies go through
// staging buffers and are converted on the GPU, NHD copies go to the page's slots.
enum class HostCopy : uint8_t { kStrided, kEachPiece, kKernel };

struct RecallCopies {
  HostPageLayout layout = HostPageLayout::kHnd;
  HostCopy copy = HostCopy::kStrided;
  uint32_t staging_buffers = 2;  // 1 or 2; 1: a head's pages are converted before the next head's are copied
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_BASE_RECALL_COPIES_H_
