#include "engine/recorder/recorder_records.h"

namespace kvtwin {

bool RecordReader::next(std::string_view* record) {
  uint64_t length = 0;
  size_t at = at_;
  for (uint32_t shift = 0;; shift += 7) {
    if (at == bytes_.size() || shift > 28) return false;
    const auto byte = static_cast<unsigned char>(bytes_[at++]);
    length |= uint64_t{byte & 0x7fu} << shift;
    if (byte < 0x80) break;
  }
  if (length > INT32_MAX || length > bytes_.size() - at) return false;
  *record = bytes_.substr(at, length);
  at_ = at + length;
  return true;
}

}  // namespace kvtwin
