// Reads any bytes as Vidur's two files (divided at the first empty line): a profile folder, or an error with
// its position.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "models/cost_tables/import_vidur.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kvtwin;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const size_t cut = std::min(bytes.find("\n\n"), bytes.size());
  const NamedText mlp{"mlp.csv", std::string(bytes.substr(0, cut))};
  const NamedText attention{"attention.csv", std::string(bytes.substr(std::min(cut + 2, bytes.size())))};
  LlmSpec llm;
  llm.name = "four heads";
  llm.query_heads = 4, llm.kv_heads = 2, llm.hidden = 64, llm.intermediate = 256, llm.vocab = 1000;
  const Result<ProfileFolder> made = import_vidur(mlp, attention, llm, "test");
  if (!made && (made.error().where.empty() || made.error().what.empty())) {
    std::fprintf(stderr, "an error without place or text\n");
    std::abort();
  }
  if (made && made->size() < 3) {
    std::fprintf(stderr, "a profile without a table\n");
    std::abort();
  }
  return 0;
}
