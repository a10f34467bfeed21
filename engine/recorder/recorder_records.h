// Files of length-delimited records, of any size, as Recorder and OutcomeLog write them. (protobuf's own
// reader counts bytes in an int and is limited to 2 GiB.)

#ifndef KVTWIN_ENGINE_RECORDER_RECORDER_RECORDS_H_
#define KVTWIN_ENGINE_RECORDER_RECORDER_RECORDS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "engine/base/check.h"

namespace kvtwin {

// Splits bytes into records. A record is its length, as a varint, followed by that number of bytes.
class RecordReader {
 public:
  // `bytes` must outlive it.
  explicit RecordReader(std::string_view bytes) : bytes_(bytes) {}

  // Returns the next record. False: the input has ended, or what follows is not a record (whole() is then
  // false).
  bool next(std::string_view* record);
  bool whole() const { return at_ == bytes_.size(); }
  size_t at() const { return at_; }

 private:
  const std::string_view bytes_;
  size_t at_ = 0;
};

// Appends one record.
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
