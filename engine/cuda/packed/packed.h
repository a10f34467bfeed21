// The ways of keeping packed KV on the GPU, for those that choose one: no CUDA in here.

#ifndef KVTWIN_ENGINE_CUDA_PACKED_PACKED_H_
#define KVTWIN_ENGINE_CUDA_PACKED_PACKED_H_

#include <cstdint>
#include <optional>
#include <string>

#include "engine/base/kv_format.h"
#include "engine/base/result.h"
#include "engine/cuda/caches.h"
#include "engine/cuda/owned_cache.h"
#include "models/catalog/llm.h"

namespace kvtwin::cuda {

struct PackedOptions {
  Format format = Format::kInt4;
  uint32_t group = 32;
  uint32_t residual_tokens = 0;  // > 0: KIVI, a multiple of the group; format is int2
  bool fused = true;             // decodes read packed pages where a kernel does; else all is unpacked: tests
};

struct MixedPrecisionOptions {
  uint32_t pages_int2 = 0;  // this many of pages_gpu, the first ones
  uint32_t group = 32;
  bool fused = true;  // as above
};

// A sentence that says what is not computed, and what would be right.
std::optional<std::string> check_packed(Format format, uint32_t group, const LlmSpec& llm,
                                        uint32_t page_tokens);

// One format on pages by position, or KIVI (packed_cache.h); int2 and int4 by tag (mixed_precision_cache.h).
// `llm` must outlive them. Wrong: no room. REQUIRES: check_packed() has nothing to say of any of their
// formats.
Result<OwnedCache> make_packed(const PackedOptions& options, const KvMemory& memory, const LlmSpec* llm);
Result<OwnedCache> make_mixed_precision(const MixedPrecisionOptions& options, const KvMemory& memory,
                                        const LlmSpec* llm);

}  // namespace kvtwin::cuda

#endif  // KVTWIN_ENGINE_CUDA_PACKED_PACKED_H_
