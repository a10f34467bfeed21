// Records of a canonical trace file (TraceFile in agent_trace.proto): a tag byte, a varint length, the bytes
// of one message.

#ifndef KVTWIN_TRACES_FORMAT_RECORD_H_
#define KVTWIN_TRACES_FORMAT_RECORD_H_

#include <google/protobuf/descriptor.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace kvtwin {

// Field n of TraceFile, length-delimited: n << 3 | 2.
constexpr char kHeaderTag = 0x0a;
constexpr char kSharedSpansTag = 0x12;
constexpr char kSessionTag = 0x1a;
constexpr char kFooterTag = 0x22;

// The largest record that is read or written. The largest WEKA session has 0.1 MiB.
constexpr uint64_t kRecordBytesMax = uint64_t{64} << 20;
// The most memory that decoding one record may take (decoded_bytes).
constexpr uint64_t kDecodedBytesMax = uint64_t{256} << 20;

void append_varint(uint64_t value, std::string* out);

// An upper bound of the memory of a decoded message, found by walking its bytes without decoding them. Two
// bytes on disk can be an empty message of 300 bytes in memory, so that a limit on the record alone would let
// 64 MiB become 10 GB. UINT64_MAX if the bytes are not such a message.
uint64_t decoded_bytes(const google::protobuf::Descriptor& type, std::string_view bytes);

}  // namespace kvtwin

#endif  // KVTWIN_TRACES_FORMAT_RECORD_H_
