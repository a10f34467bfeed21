// Runs a fuzzer on its seeds without libFuzzer: each file whole, truncated at 64 places, and with one byte
// changed at each of those places.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

void feed(const std::string& bytes) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
}

}  // namespace

int main(int argc, char** argv) {
  feed({});
  for (int i = 1; i < argc; ++i) {
    if (!std::filesystem::exists(argv[i])) continue;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(argv[i])) {
      if (!entry.is_regular_file()) continue;
      std::ifstream file(entry.path(), std::ios::binary);
      const std::string bytes{std::istreambuf_iterator<char>(file), {}};
      constexpr size_t kSeedBytesMax = 256 * 1024;  // a larger file is not a seed
      if (bytes.size() > kSeedBytesMax) continue;
      feed(bytes);
      constexpr size_t kPlaces = 64;
      for (size_t place = 0; place < kPlaces && place < bytes.size(); ++place) {
        const size_t at = bytes.size() * place / kPlaces;
        feed(bytes.substr(0, at));
        std::string changed = bytes;
        changed[at] = static_cast<char>(changed[at] ^ (1 << (place % 8)));
        feed(changed);
      }
    }
  }
  return 0;
}
