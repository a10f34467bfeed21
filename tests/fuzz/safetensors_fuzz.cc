// Reads any bytes as a safetensors file: tensors inside the bytes, or an error that names the problem. A
// file that was read is written, and must be read again.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "models/weights/safetensors.h"

namespace {

using namespace kvtwin;

void demand(bool good, const char* what) {
  if (good) return;
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  const auto read = parse_safetensors(bytes, "fuzz");
  if (!read) {
    demand(!read.error().where.empty() && !read.error().what.empty(), "an error without place or text");
    return 0;
  }
  std::string again;
  for (const NamedTensor& tensor : *read) {
    const auto& view = tensor.tensor;
    const bool inside =
        view.data.empty() || (view.data.data() >= bytes.data() &&
                              view.data.data() + view.data.size() <= bytes.data() + bytes.size());
    demand(inside, "a tensor outside the file");
    if (view.type <= TensorType::kBf16) {
      demand(read_floats(view).size() == view.elements(), "a tensor of another size than its shape");
    }
    again.append(reinterpret_cast<const char*>(view.data.data()), view.data.size());
  }
  // Other types have no name to write.
  for (const NamedTensor& tensor : *read) {
    if (tensor.tensor.type == TensorType::kOther) return 0;
  }
  again = safetensors_header(*read) + again;
  const auto twice = parse_safetensors(std::as_bytes(std::span(again)), "again");
  demand(twice.has_value() && twice->size() == read->size(), "what was written is not read");
  return 0;
}
