// TraceWriter is a TraceSink that writes a canonical trace file, record by record.
//
// The bytes go to FILE.part; done() writes the footer (counts and the offset of every session) and renames.
// So FILE either does not exist, is unchanged, or is complete. Without done() the part file is removed. Every
// session is checked (check.h) before it is written.

#ifndef KVTWIN_TRACES_FORMAT_WRITER_H_
#define KVTWIN_TRACES_FORMAT_WRITER_H_

#include <string>

#include "traces/format/check.h"
#include "traces/format/sink.h"
#include "traces/format/text_file.h"

namespace kvtwin {

class TraceWriter : public TraceSink {
 public:
  explicit TraceWriter(std::string path) : file_(std::move(path)) {}

  Result<void> header(const v1::TraceHeader& header) override;
  Result<void> shared_spans(const v1::SharedSpanTable& table) override;
  Result<void> session(const v1::Session& session) override;
  Result<void> done() override;

  const v1::TraceFooter& footer() const { return footer_; }

 private:
  Result<void> record(char tag, const google::protobuf::MessageLite& message);

  TextFile file_;
  uint64_t offset_ = 0;
  SessionChecker checker_;
  v1::TraceFooter footer_;
  std::string buffer_;
  bool have_header_ = false;
};

}  // namespace kvtwin

#endif  // KVTWIN_TRACES_FORMAT_WRITER_H_
