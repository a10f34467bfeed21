// Files of length-delimited records, of any size: what Recorder and OutcomeLog write. (protobuf's own reader
// counts bytes in an int, so it ends at 2 GiB.)

#ifndef KVTWIN_ENGINE_RECORDER_RECORDER_RECORDS_H_
#define KVTWIN_ENGINE_RECORDER_RECORDER_RECORDS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "engine/base/check.h"

namespace kvtwin {

// Cuts bytes into records: each is its length, as a varint, and so many bytes.
class RecordReader {
 public:
  // `bytes` must outlive it.
  explicit RecordReader(std::string_view bytes) : bytes_(bytes) {}

  // The next record; false: there is none, or what follows is none (then whole() is false).
  bool next(std::string_view* record);
  bool whole() const { return at_ == bytes_.size(); }
  size_t at() const { return at_; }

 private:
  const std::string_view bytes_;
  size_t at_ = 0;
};

// Appends one.
template <typename Record>
void append_record(const Record& record, std::string* bytes) {
  for (size_t length = record.ByteSizeLong();; length >>= 7) {
    const bool last = length < 0x80;
    bytes->push_back(static_cast<char>((length & 0x7f) | (last ? 0 : 0x80)));
    if (last) break;
  }
  KVT_CHECK(record.AppendToString(bytes));
}

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_RECORDER_RECORDER_RECORDS_H_
