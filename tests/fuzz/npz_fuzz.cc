// Reads any bytes as an array, as a retention profile and as its textproto: a result, or an error with its
// position. An accepted profile is within its limits, and its textproto reads back.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "models/files/npz.h"
#include "models/profiles/retention_stats.h"

namespace {

using namespace kvtwin;

void demand(bool good, const char* what) {
  if (good) return;
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

template <typename T>
void demand_named(const Result<T>& result) {
  if (!result)
    demand(!result.error().where.empty() && !result.error().what.empty(), "an error without place or text");
}

void use(const RetentionProfile& p) {
  demand(p.mu.size() == p.heads() && p.fraction_sigma.size() == p.heads(), "tables of the wrong size");
  for (const double x : p.mu) demand(x >= 0 && x <= 1, "a fraction that is none");
  const std::string text = retention_textproto(p, 2);
  const auto again = parse_retention_profile(text, "again");
  demand(again.has_value(), again ? "" : again.error().text().c_str());
  demand(retention_textproto(*again, 2) == text, "written twice is not the same");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  demand_named(parse_npy(bytes, "bytes"));
  const auto imported = import_retention_npz(bytes, "bytes");
  demand_named(imported);
  if (imported) use(*imported);
  const auto parsed = parse_retention_profile(bytes, "bytes");
  demand_named(parsed);
  if (parsed) use(*parsed);
  return 0;
}
