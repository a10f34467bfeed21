// An owned KvCache (kv_cache.h) for code that passes it on without including CUDA's headers.

#ifndef KVTWIN_ENGINE_CUDA_OWNED_CACHE_H_
#define KVTWIN_ENGINE_CUDA_OWNED_CACHE_H_

#include <memory>

namespace kvtwin::cuda {

class KvCache;

struct DeleteCache {
  void operator()(KvCache* cache) const;
};
using OwnedCache = std::unique_ptr<KvCache, DeleteCache>;

}  // namespace kvtwin::cuda

#endif  // KVTWIN_ENGINE_CUDA_OWNED_CACHE_H_
