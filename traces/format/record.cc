#include "traces/format/record.h"

namespace kvtwin {
namespace {

using google::protobuf::FieldDescriptor;

constexpr uint64_t kMalformed = UINT64_MAX;

// Removes one varint from the front; false if there is none.
bool take_varint(std::string_view* bytes, uint64_t* value) {
  *value = 0;
  for (size_t i = 0; i < bytes->size() && i < 10; ++i) {
    const auto byte = static_cast<uint8_t>((*bytes)[i]);
    *value |= static_cast<uint64_t>(byte & 0x7f) << (7 * i);
    if (byte < 0x80) {
      bytes->remove_prefix(i + 1);
      return true;
    }
  }
  return false;
}

// Number of elements of a packed field: a varint ends with a byte whose top bit is clear, others have a
// width.
uint64_t packed_elements(const FieldDescriptor& field, std::string_view payload) {
  switch (field.type()) {
    case FieldDescriptor::TYPE_FIXED64:
    case FieldDescriptor::TYPE_SFIXED64:
    case FieldDescriptor::TYPE_DOUBLE:
      return payload.size() / 8;
    case FieldDescriptor::TYPE_FIXED32:
    case FieldDescriptor::TYPE_SFIXED32:
    case FieldDescriptor::TYPE_FLOAT:
      return payload.size() / 4;
    default:
      break;
  }
  uint64_t elements = 0;
  for (const char byte : payload) elements += (static_cast<uint8_t>(byte) & 0x80) == 0;
  return elements;
}

uint64_t payload_bytes(const FieldDescriptor* field, std::string_view payload) {
  if (field == nullptr) return 64 + payload.size();
  switch (field->type()) {
    case FieldDescriptor::TYPE_MESSAGE:
      return decoded_bytes(*field->message_type(), payload);
    case FieldDescriptor::TYPE_STRING:
    case FieldDescriptor::TYPE_BYTES:
      return 64 + payload.size();
    default:
      return 16 + 16 * packed_elements(*field, payload);  // 8 bytes each, twice while growing
  }
}

}  // namespace

void append_varint(uint64_t value, std::string* out) {
  for (; value >= 0x80; value >>= 7) out->push_back(static_cast<char>(value | 0x80));
  out->push_back(static_cast<char>(value));
}

uint64_t decoded_bytes(const google::protobuf::Descriptor& type, std::string_view bytes) {
  // A message has a header, a pointer to it, and room for every field, set or not.
  uint64_t total = 64 + 16 * static_cast<uint64_t>(type.field_count());
  while (!bytes.empty()) {
    uint64_t key = 0, value = 0;
    if (!take_varint(&bytes, &key) || (key >> 3) == 0 || key > UINT32_MAX) return kMalformed;
    const FieldDescriptor* const field = type.FindFieldByNumber(static_cast<int>(key >> 3));
    uint64_t size = 0;
    switch (key & 7) {
      case 0:
        if (!take_varint(&bytes, &value)) return kMalformed;
        total += 24;
        continue;
      case 1:
        size = 8;
        break;
      case 5:
        size = 4;
        break;
      case 2:
        if (!take_varint(&bytes, &size)) return kMalformed;
        break;
      default:
        return kMalformed;  // groups do not occur in proto3
    }
    if (size > bytes.size()) return kMalformed;
    if ((key & 7) == 2) {
      const uint64_t inner = payload_bytes(field, bytes.substr(0, size));
      if (inner == kMalformed) return kMalformed;
      total += inner;
    } else {
      total += 24;
    }
    bytes.remove_prefix(size);
  }
  return total;
}

}  // namespace kvtwin
