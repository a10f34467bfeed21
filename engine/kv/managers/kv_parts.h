// KvParts are the tiers of one engine: a page pool for each, the index of cached prefixes, and the transfers
// between them.

#ifndef KVTWIN_ENGINE_KV_MANAGERS_KV_PARTS_H_
#define KVTWIN_ENGINE_KV_MANAGERS_KV_PARTS_H_

#include <memory>

#include "engine/kv/kv_usage.h"
#include "engine/kv/managers/kv_context.h"
#include "engine/kv/store/page_tiers.h"
#include "engine/kv/store/transfer_manager.h"

namespace kvtwin {

struct KvParts {
  // The tier whose pages the index shares among requests. Host: the index holds host pages in the role of GPU
  // pages.
  enum class Shares : uint8_t { kGpu, kHost };
  // `gpu_pages`: pages or logical pages. `watch` may be null; it must outlive this, and so must *context.
  KvParts(KvContext* context, uint32_t gpu_pages, Shares shares, HoldWatch* watch)
      : KvParts(context, gpu_pages, shares, watch, OfOthers{}) {}
  // What others have in place of its own, and what must outlive it; null: its own.
  struct OfOthers {
    PrefixIndex* index = nullptr;
    PageCache* cache = nullptr;
    const GpuRoom* room = nullptr;
    PagePool* copies = nullptr;  // numbers of copies on the host, for its own index
  };
  KvParts(KvContext* context, uint32_t gpu_pages, Shares shares, HoldWatch* watch, const OfOthers& others);
  KvParts(const KvParts&) = delete;
  KvParts& operator=(const KvParts&) = delete;

  void check_invariants() const;
  // Leading tokens of the prompt that are in whole pages of the index, in the role of GPU pages.
  uint32_t tokens_cached(const KvContext& context, const RequestReady& request) const;
  // Adds free and total pages of each tier.
  void count_pages(KvUsage* usage) const;

  std::unique_ptr<PrefixIndex> make_index(const KvContext& context, Shares shares, HoldWatch* watch,
                                          PagePool* copies);

  PagePool gpu;
  std::unique_ptr<PagePool> host, disk;  // null: there is no such tier
  std::unique_ptr<PrefixIndex> own_index;
  PrefixIndex& index;
  const PageTiers tiers;
  TransferManager transfers;
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_KV_MANAGERS_KV_PARTS_H_
