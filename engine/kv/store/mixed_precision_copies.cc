// MixedPrecisionPool: copies of cached logical pages on the host.

#include <algorithm>
#include <utility>

#include "engine/base/check.h"
#include "engine/kv/store/mixed_precision_pool.h"

namespace kvtwin {

PageId MixedPrecisionPool::current_copy(PageId page) const {
  const Page& p = pages_[raw(page)];
  if (p.host == kNoPage) return kNoPage;
  const HostPage& host = host_pages_[raw(p.host) - pages_.size()];
  const bool current = host.copies > 0 && host.source == page && host.version == p.version;
  // One that another offload copies might not arrive.
  return current && (host.there || host.fresh) ? p.host : kNoPage;
}

bool MixedPrecisionPool::has_room(PageId logical_page) const {
  const LogicalPage& f = logical_pages_[raw(logical_page)];
  const auto wanted = std::count_if(f.links.begin(), f.links.begin() + f.count,
                                    [&](const Link& link) { return current_copy(link.page) == kNoPage; });
  return host_.tiers->host->pages_free() >= static_cast<uint32_t>(wanted);
}

PageId MixedPrecisionPool::take_copy(PageId page) {
  PageId host = current_copy(page);
  if (host == kNoPage) {
    host = host_.tiers->host->acquire();
    host_page(host) = {.source = page, .version = pages_[raw(page)].version, .fresh = true};
    pages_[raw(page)].host = host;
    fresh_.push_back(host);
  }
  ++host_page(host).copies;
  return host;
}

void MixedPrecisionPool::copying(PageId logical_page, PageId copy) {
  LogicalPage& to = copy_at(copy);
  to = logical_pages_[raw(logical_page)];
  to.copy = logical_page;
  for (uint32_t i = 0; i < to.count; ++i) to.links[i].page = take_copy(to.links[i].page);
  for (PageId& page : to.at) page = page == kNoPage ? kNoPage : pages_[raw(page)].host;
}

void MixedPrecisionPool::resolve(std::vector<PageId>* source, std::vector<PageId>* target) {
  source->clear();
  for (const PageId host : fresh_) {
    host_page(host).fresh = false;
    source->push_back(host_page(host).source);
  }
  target->swap(fresh_);
  fresh_.clear();
}

void MixedPrecisionPool::arrived(std::span<const PageId> numbers, std::span<const PageId> pages) {
  for (const PageId page : pages) {
    if (raw(page) < pages_.size()) continue;  // loaded
    host_page(page).there = true;
    ++pages_host_;
  }
  for (const PageId number : numbers) {
    if (copies_->has(number)) set_copy(copy_at(number).copy, number);
  }
}

void MixedPrecisionPool::set_copy(PageId logical_page, PageId copy) {
  LogicalPage& f = logical_pages_[raw(logical_page)];
  KVT_CHECK((f.copy == kNoPage) != (copy == kNoPage));
  f.copy = copy;
  for (uint32_t i = 0; i < f.count; ++i)
    change(f.links[i].page, [&](Page* p) { copy == kNoPage ? --p->copied : ++p->copied; });
}

void MixedPrecisionPool::copy_freed(PageId copy) {
  LogicalPage& from = copy_at(copy);
  // The logical page may have left the GPU, or its copy may not have arrived.
  if (logical_pages_[raw(from.copy)].copy == copy) set_copy(from.copy, kNoPage);
  for (uint32_t i = 0; i < from.count; ++i) {
    const PageId page = from.links[i].page;
    HostPage& host = host_page(page);
    if (--host.copies > 0) continue;
    pages_host_ -= host.there ? 1 : 0;
    host = {};
    host_.tiers->host->release(page, 0);
  }
  from = {};
}

MixedPrecisionDemand MixedPrecisionPool::demand_of_load(std::span<const PageId> copies) {
  MixedPrecisionDemand demand;
  ++begun_;
  for (const PageId copy : copies) {
    const LogicalPage& from = copy_at(copy);
    for (uint32_t i = 0; i < from.count; ++i) {
      HostPage& host = host_page(from.links[i].page);
      if (std::exchange(host.seen, begun_) == begun_) continue;
      ++(is_int4(host.source) ? demand.pages_4 : demand.pages_2);
    }
  }
  return demand;
}

PageId MixedPrecisionPool::take_loaded(PageId host_page_id, std::vector<PageId>* source,
                                       std::vector<PageId>* target) {
  HostPage& host = host_page(host_page_id);
  if (std::exchange(host.seen, begun_) != begun_) {
    host.loaded = (is_int4(host.source) ? pool_4_ : pool_2_).acquire();
    source->push_back(host_page_id);
    target->push_back(host.loaded);
  }
  return host.loaded;
}

void MixedPrecisionPool::load(std::span<const PageId> copies, std::span<const PageId> logical_pages,
                              std::vector<PageId>* source, std::vector<PageId>* target) {
  ++begun_;
  for (size_t n = 0; n < copies.size(); ++n) {
    LogicalPage& from = copy_at(copies[n]);
    for (uint32_t i = 0; i < from.count; ++i) {
      const Link& link_to = from.links[i];
      link(logical_pages[n], take_loaded(link_to.page, source, target), link_to.kv_entries);
    }
    std::vector<PageId>& at = logical_pages_[raw(logical_pages[n])].at;
    at = from.at;
    for (PageId& page : at) page = page == kNoPage ? kNoPage : host_page(page).loaded;
    from.copy = logical_pages[n];
    set_copy(logical_pages[n], copies[n]);
  }
}

void MixedPrecisionPool::check_copies() const {
  if (copies_ == nullptr) return;
  copies_->check_invariants();
  std::vector<uint32_t> found(host_pages_.size(), 0);
  for (const LogicalPage& copy : copied_) {
    for (uint32_t i = 0; i < copy.count; ++i) ++found[raw(copy.links[i].page) - pages_.size()];
  }
  uint32_t there = 0;
  for (size_t i = 0; i < host_pages_.size(); ++i) {
    KVT_CHECK(found[i] == host_pages_[i].copies);
    KVT_CHECK(found[i] == 0 || host_.tiers->host->owned(PageId{static_cast<uint32_t>(pages_.size() + i)}));
    there += host_pages_[i].there ? 1 : 0;
  }
  KVT_CHECK(there == pages_host_ && fresh_.empty());
}

}  // namespace kvtwin
