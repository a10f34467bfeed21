#include "engine/kv/managers/kv_parts.h"

#include "engine/methods/registry.h"

namespace kvtwin {
namespace {

// Page numbers continue from tier to tier.
std::unique_ptr<PagePool> make_pool(uint32_t first, uint32_t pages) {
  if (pages == 0) return nullptr;
  return std::make_unique<PagePool>(PageId{first}, pages, PageOrder::kLowestFirst);
}

}  // namespace

KvParts::KvParts(KvContext* context, uint32_t gpu_pages, Shares shares, HoldWatch* watch,
                 const OfOthers& others)
    : gpu(PageId{0}, gpu_pages, context->config.page_order),
      host(make_pool(context->config.pages_gpu, context->config.pages_host)),
      disk(make_pool(context->config.pages_gpu + context->config.pages_host, context->config.pages_disk)),
      own_index(others.index == nullptr ? make_index(*context, shares, watch, others.copies) : nullptr),
      index(others.index == nullptr ? *own_index : *others.index),
      tiers{&gpu,
            host.get(),
            disk.get(),
            &index,
            others.cache == nullptr ? &index : others.cache,
            others.room != nullptr    ? others.room
            : others.cache != nullptr ? others.cache
                                      : static_cast<const GpuRoom*>(&index),
            watch},
      transfers(context->config.engine, tiers,
                {context->config.offload_pages_target, context->config.spill_pages_target,
                 context->config.offload_batch_pages},
                &context->digest) {}

std::unique_ptr<PrefixIndex> KvParts::make_index(const KvContext& context, Shares shares, HoldWatch* watch,
                                                 PagePool* copies) {
  const CoreConfig& config = context.config;
  PagePool* const below = copies != nullptr ? copies : host.get();
  return std::make_unique<PrefixIndex>(config.page_tokens / config.unit_tokens,
                                       shares == Shares::kHost ? host.get() : &gpu,
                                       shares == Shares::kHost ? nullptr : below,
                                       make_prefix_eviction(config, config.page_tokens), watch, disk.get());
}

void KvParts::check_invariants() const {
  gpu.check_invariants();
  if (host) host->check_invariants();
  if (disk) disk->check_invariants();
  index.check_invariants();
}

uint32_t KvParts::tokens_cached(const KvContext& context, const RequestReady& request) const {
  const std::optional<uint64_t> name_space = context.name_space(request.session);
  if (!name_space.has_value()) return 0;
  const uint32_t page = context.config.page_tokens;
  return index.find_on_gpu(*name_space, request.identity, request.prompt_tokens / page) * page;
}

void KvParts::count_pages(KvUsage* usage) const {
  usage->pages_gpu_total = gpu.pages_total();
  usage->pages_gpu_free = gpu.pages_free();
  usage->pages_evicted = index.pages_evicted();
  if (host) {
    usage->pages_host_total = host->pages_total();
    usage->pages_host_free = host->pages_free();
  }
  if (disk) {
    usage->pages_disk_total = disk->pages_total();
    usage->pages_disk_free = disk->pages_free();
  }
}

}  // namespace kvtwin
