#include "models/weights/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>

#include "engine/base/check.h"

namespace kvtwin {
namespace {

using Json = nlohmann::json;

// The limit of the format: a header is read whole.
constexpr uint64_t kTensorsHeaderBytesMax = 100'000'000;

TensorType type_named(const std::string& name) {
  if (name == "F32") return TensorType::kF32;
  if (name == "F16") return TensorType::kF16;
  if (name == "BF16") return TensorType::kBf16;
  if (name == "I32") return TensorType::kI32;
  if (name == "I64") return TensorType::kI64;
  return TensorType::kOther;
}

float from_half(uint16_t bits) {
  const uint32_t sign = uint32_t{bits & 0x8000u} << 16;
  const uint32_t exponent = (bits >> 10) & 0x1f;
  const uint32_t fraction = bits & 0x3ff;
  if (exponent == 0) {
    const float tiny = static_cast<float>(fraction) * 0x1p-24f;  // zero and subnormals: exact
    return sign != 0 ? -tiny : tiny;
  }
  const uint32_t wide = exponent == 31 ? 255u : exponent + 112;
  return std::bit_cast<float>(sign | (wide << 23) | (fraction << 13));
}

std::string clip(const std::string& text) { return text.size() <= 80 ? text : text.substr(0, 77) + "..."; }

// One entry of the header; `data` is what follows the header.
Result<TensorView> read_entry(const Json& entry, std::span<const std::byte> data, const std::string& where) {
  const char* const right = "write {\"dtype\": ..., \"shape\": [...], \"data_offsets\": [begin, end]}";
  if (!entry.is_object()) return make_error(where, "is no object", right);
  const auto dtype = entry.find("dtype"), shape = entry.find("shape"), offsets = entry.find("data_offsets");
  if (dtype == entry.end() || !dtype->is_string()) return make_error(where, "has no dtype", right);
  if (shape == entry.end() || !shape->is_array()) return make_error(where, "has no shape", right);
  if (offsets == entry.end() || !offsets->is_array() || offsets->size() != 2 ||
      !(*offsets)[0].is_number_unsigned() || !(*offsets)[1].is_number_unsigned())
    return make_error(where, "has no data_offsets", right);
  TensorView view;
  view.type = type_named(dtype->get<std::string>());
  uint64_t elements = 1;
  for (const Json& size : *shape) {
    if (!size.is_number_unsigned())
      return make_error(where, "has a shape that is not of whole numbers", right);
    view.shape.push_back(size.get<uint64_t>());
    if (view.shape.size() > 8 || __builtin_mul_overflow(elements, view.shape.back(), &elements))
      return make_error(where, "has a shape that no tensor can have", "at most 8 sizes, below 2^64 in all");
  }
  const auto begin = (*offsets)[0].get<uint64_t>(), end = (*offsets)[1].get<uint64_t>();
  if (begin > end || end > data.size()) {
    return make_error(where, fmt::format("lies at bytes {} to {}", begin, end),
                      fmt::format("the file has {} bytes of tensors", data.size()));
  }
  uint64_t bytes = 0;
  if (view.type != TensorType::kOther &&
      (__builtin_mul_overflow(elements, uint64_t{bytes_of(view.type)}, &bytes) || bytes != end - begin)) {
    return make_error(where, fmt::format("has {} bytes", end - begin),
                      fmt::format("{} elements of {} need {}", elements, name_of(view.type), bytes));
  }
  view.data = data.subspan(begin, end - begin);
  return view;
}

// Checks that tensors cover the bytes after the header once and without gaps, so that a file hides nothing.
Result<void> check_cover(const std::vector<NamedTensor>& tensors, std::span<const std::byte> data,
                         const std::string& where) {
  std::vector<const NamedTensor*> in_order;
  for (const NamedTensor& tensor : tensors) in_order.push_back(&tensor);
  const auto begin_of = [](const NamedTensor* t) {
    return std::pair(t->tensor.data.data(), t->tensor.data.size());
  };
  std::sort(in_order.begin(), in_order.end(),
            [&](const NamedTensor* a, const NamedTensor* b) { return begin_of(a) < begin_of(b); });
  const std::byte* at = data.data();
  for (const NamedTensor* tensor : in_order) {
    const std::byte* const begin = tensor->tensor.data.data();
    if (begin < at) {
      return make_error(where + ": " + clip(tensor->name), "overlaps the tensor before it",
                        fmt::format("byte {} would be right", at - data.data()));
    }
    if (begin > at) {
      return make_error(where + ": " + clip(tensor->name),
                        fmt::format("leaves a hole of {} bytes before it", begin - at),
                        "tensors follow one another");
    }
    at = begin + tensor->tensor.data.size();
  }
  const std::byte* const end = data.data() + data.size();
  if (at == end) return {};
  return make_error(where, fmt::format("has {} bytes behind its last tensor", end - at),
                    "the file ends with its last tensor");
}

}  // namespace

const char* name_of(TensorType type) {
  switch (type) {
    case TensorType::kF32:
      return "F32";
    case TensorType::kF16:
      return "F16";
    case TensorType::kBf16:
      return "BF16";
    case TensorType::kI32:
      return "I32";
    case TensorType::kI64:
      return "I64";
    case TensorType::kOther:
      return "another dtype";
  }
  return "?";
}

uint32_t bytes_of(TensorType type) {
  switch (type) {
    case TensorType::kF32:
    case TensorType::kI32:
      return 4;
    case TensorType::kF16:
    case TensorType::kBf16:
      return 2;
    case TensorType::kI64:
      return 8;
    case TensorType::kOther:
      return 0;
  }
  return 0;
}

uint64_t TensorView::elements() const {
  uint64_t count = 1;
  for (const uint64_t size : shape) count *= size;
  return count;
}

void read_floats(const TensorView& tensor, uint64_t first, uint64_t count, float* out) {
  const uint32_t size = bytes_of(tensor.type);
  KVT_CHECK(tensor.type <= TensorType::kBf16);
  KVT_CHECK((first + count) * size <= tensor.data.size());
  const std::byte* from = tensor.data.data() + first * size;
  if (tensor.type == TensorType::kF32) {
    if (count > 0) std::memcpy(out, from, count * size);
    return;
  }
  for (uint64_t i = 0; i < count; ++i, from += 2) {
    uint16_t bits = 0;
    std::memcpy(&bits, from, 2);
    out[i] = tensor.type == TensorType::kBf16 ? std::bit_cast<float>(uint32_t{bits} << 16) : from_half(bits);
  }
}

std::vector<float> read_floats(const TensorView& tensor) {
  std::vector<float> out(tensor.elements());
  read_floats(tensor, 0, out.size(), out.data());
  return out;
}

Result<std::vector<NamedTensor>> parse_safetensors(std::span<const std::byte> bytes,
                                                   const std::string& where) {
  uint64_t header_bytes = 0;
  if (bytes.size() < 8) {
    return make_error(where, fmt::format("is {} bytes long", bytes.size()),
                      "a safetensors file begins with 8 bytes of header length");
  }
  for (int i = 7; i >= 0; --i)
    header_bytes = header_bytes << 8 | static_cast<uint8_t>(bytes[static_cast<size_t>(i)]);
  if (header_bytes > std::min<uint64_t>(kTensorsHeaderBytesMax, bytes.size() - 8)) {
    return make_error(
        where, fmt::format("has a header of {} bytes", header_bytes),
        fmt::format("the file has {} bytes, and a header at most {}", bytes.size(), kTensorsHeaderBytesMax));
  }
  const char* const text = reinterpret_cast<const char*>(bytes.data()) + 8;
  // Fields of a tensor are three levels deep; a valid header is no deeper.
  const auto shallow = [](int depth, Json::parse_event_t, Json&) { return depth <= 4; };
  const Json header = Json::parse(text, text + header_bytes, shallow, false);
  if (header.is_discarded() || !header.is_object())
    return make_error(where, "has a header that is no JSON object", "is this a safetensors file?");
  const auto data = bytes.subspan(8 + header_bytes);
  std::vector<NamedTensor> tensors;
  for (const auto& [name, entry] : header.items()) {  // nlohmann's objects are sorted by key
    if (name == "__metadata__") continue;
    Result<TensorView> view = read_entry(entry, data, where + ": " + clip(name));
    if (!view) return tl::unexpected<Error>(view.error());
    tensors.push_back({name, std::move(*view)});
  }
  if (Result<void> ok = check_cover(tensors, data, where); !ok) return tl::unexpected<Error>(ok.error());
  return tensors;
}

}  // namespace kvtwin
