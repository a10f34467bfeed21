#include "traces/format/writer.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "traces/format/record.h"

namespace kvtwin {

Result<void> TraceWriter::record(char tag, const google::protobuf::MessageLite& message) {
  buffer_.clear();
  buffer_.push_back(tag);
  if (message.ByteSizeLong() > kRecordBytesMax) {
    return make_error(file_.path(),
                      fmt::format("a record of {} bytes at byte {}", message.ByteSizeLong(), offset_),
                      fmt::format("a record may have at most {} bytes: cut the session", kRecordBytesMax));
  }
  append_varint(message.ByteSizeLong(), &buffer_);
  if (!message.AppendPartialToString(&buffer_))
    return make_error(file_.path(), "a record could not be encoded");
  if (auto good = file_.write(buffer_); !good) return good;
  offset_ += buffer_.size();
  return {};
}

Result<void> TraceWriter::header(const v1::TraceHeader& header) {
  if (const auto good = checker_.header(header); !good) return good;
  if (auto good = file_.open(); !good) return good;
  have_header_ = true;
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
  if (!have_header_) return make_error(file_.path(), "the trace has no header");
  if (auto good = record(kFooterTag, footer_); !good) return good;
  return file_.commit();
}

}  // namespace kvtwin
