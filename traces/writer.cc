#include "traces/writer.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "traces/record.h"

namespace kvtwin {

TraceWriter::TraceWriter(std::string path) : path_(std::move(path)), part_(path_ + ".part") {}

TraceWriter::~TraceWriter() {
  if (done_ || !out_.is_open()) return;
  out_.close();
  std::error_code ignored;  // nothing better can be done with a part file that will not go away
  std::filesystem::remove(part_, ignored);
}

Result<void> TraceWriter::record(char tag, const google::protobuf::MessageLite& message) {
  buffer_.clear();
  buffer_.push_back(tag);
  if (message.ByteSizeLong() > kRecordBytesMax) {
    return mistake(path_, fmt::format("a record of {} bytes at byte {}", message.ByteSizeLong(), offset_),
                   fmt::format("a record may have at most {} bytes: cut the session", kRecordBytesMax));
  }
  append_varint(message.ByteSizeLong(), &buffer_);
  if (!message.AppendPartialToString(&buffer_)) return mistake(path_, "a record could not be encoded");
  out_.write(buffer_.data(), static_cast<std::streamsize>(buffer_.size()));
  if (!out_) {
    return mistake(part_, fmt::format("writing failed at byte {}: {}", offset_, std::strerror(errno)));
  }
  offset_ += buffer_.size();
  return {};
}

Result<void> TraceWriter::header(const v1::TraceHeader& header) {
  if (const auto good = checker_.header(header); !good) return good;
  out_.open(part_, std::ios::binary | std::ios::trunc);
  if (!out_) return mistake(part_, fmt::format("cannot be written: {}", std::strerror(errno)));
  return record(kHeaderTag, header);
}

Result<void> TraceWriter::shared_spans(const v1::SharedSpanTable& table) {
  if (const auto good = checker_.shared_spans(table); !good) return good;
  return record(kSharedSpansTag, table);
}

Result<void> TraceWriter::session(const v1::Session& session) {
  if (const auto good = checker_.session(session); !good) return good;
  footer_.add_session_offsets(offset_);
  checker_.count(session, &footer_);
  return record(kSessionTag, session);
}

Result<void> TraceWriter::done() {
  if (!out_.is_open()) return mistake(path_, "the trace has no header");
  if (auto good = record(kFooterTag, footer_); !good) return good;
  out_.close();
  std::error_code error;
  if (!out_.fail()) std::filesystem::rename(part_, path_, error);
  if (out_.fail() || error) {
    std::error_code ignored;
    std::filesystem::remove(part_, ignored);
    return mistake(path_, fmt::format("cannot be written: {}", error ? error.message() : "closing failed"));
  }
  done_ = true;
  return {};
}

}  // namespace kvtwin
