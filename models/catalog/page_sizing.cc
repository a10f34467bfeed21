#include "models/catalog/page_sizing.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/check.h"

namespace kvtwin {

Result<uint32_t> pages_that_fit(const PageSizing& sizing, const std::string& gpu, const std::string& model) {
  KVT_CHECK(sizing.bytes_per_token > 0 && sizing.page_tokens > 0 && sizing.fraction > 0);
  const uint64_t left = sizing.free_bytes > kEngineBytes ? sizing.free_bytes - kEngineBytes : 0;
  const auto usable = static_cast<uint64_t>(static_cast<double>(left) * sizing.fraction);
  const uint64_t kept = sizing.others * (sizing.tokens_of_others * sizing.bytes_per_token + kEngineBytes);
  const uint64_t beside = (left > kept ? left - kept : 0) / sizing.bytes_per_token;
  const uint64_t tokens =
      std::min({usable / sizing.bytes_per_token, sizing.tokens_most, std::max(beside, sizing.tokens_least)});
  if (tokens < sizing.tokens_least) {
    const double needed =
        static_cast<double>(sizing.tokens_least * sizing.bytes_per_token) / sizing.fraction + kEngineBytes;
    return make_error(gpu,
                      fmt::format("{:.1f} GB are free for KV of {}; this needs {:.1f} GB",
                                  static_cast<double>(sizing.free_bytes) / 1e9, model, needed / 1e9),
                      "end other programs on this GPU, or name a smaller model (kvtwin list models)");
  }
  return static_cast<uint32_t>(tokens / sizing.page_tokens);
}

}  // namespace kvtwin
