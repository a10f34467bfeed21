#include "traces/format/reader.h"

#include <fmt/format.h>
#include <google/protobuf/stubs/logging.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "engine/base/regular_file.h"
#include "engine/base/retired_names.h"
#include "traces/format/check.h"
#include "traces/format/record.h"

namespace kvtwin {
namespace {

// Provenance names messages and fields; older traces use the names of their time.
void use_current_names(v1::TraceHeader* header) {
  for (v1::FieldPolicy& policy : *header->mutable_policies()) {
    const size_t dot = policy.field().find('.');
    const std::string_view now = name_now(policy.field().substr(0, dot), {"LlmRequest"});
    if (!now.empty() && dot != std::string::npos)
      policy.set_field(std::string(now) + policy.field().substr(dot));
  }
}

class Reading {
 public:
  Reading(std::istream& in, const std::string& name, TraceSink* sink) : in_(in), name_(name), sink_(sink) {}

  Result<v1::TraceFooter> run() {
    for (bool ended = false; !ended;) {
      start_ = offset_;
      const int tag = in_.get();
      if (tag == std::istream::traits_type::eof()) {
        return problem("the file ends without a footer", "it was cut off; make it again");
      }
      ++offset_;
      if (auto good = take_body(); !good) return tl::unexpected(good.error());
      auto good = record(static_cast<char>(tag));
      if (!good) return tl::unexpected(good.error());
      ended = tag == kFooterTag;
    }
    if (in_.peek() != std::istream::traits_type::eof()) {
      start_ = offset_;
      return problem("bytes after the footer", "nothing follows it");
    }
    if (auto good = sink_->done(); !good) return tl::unexpected(good.error());
    return counted_;
  }

 private:
  tl::unexpected<Error> problem(std::string what, std::string hint = {}) const {
    return make_error(fmt::format("{}: byte {}", name_, start_), std::move(what), std::move(hint));
  }

  // Reads length and bytes of one record into body_.
  Result<void> take_body() {
    uint64_t size = 0;
    for (int shift = 0;; shift += 7) {
      const int byte = in_.get();
      if (byte == std::istream::traits_type::eof()) return problem("the file ends inside a record's length");
      ++offset_;
      size |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) break;
      if (shift > 28) return problem("a record's length is not a number", "this is not a kvtwin trace");
    }
    if (size > kRecordBytesMax) {
      return problem(
          fmt::format("a record of {} bytes", size),
          fmt::format("at most {}; this is not a kvtwin trace, or it is damaged", kRecordBytesMax));
    }
    body_.clear();
    constexpr uint64_t kPiece = 1 << 20;
    while (body_.size() < size) {
      const uint64_t piece = std::min(kPiece, size - body_.size());
      const size_t before = body_.size();
      body_.resize(before + piece);
      in_.read(body_.data() + before, static_cast<std::streamsize>(piece));
      const auto got = static_cast<uint64_t>(in_.gcount());
      offset_ += got;
      if (got < piece) {
        return problem(fmt::format("a record of {} bytes ends after {}", size, before + got),
                       "the file was cut off; make it again");
      }
    }
    return {};
  }

  template <typename Message>
  Result<void> decode(Message* message) {
    const uint64_t memory = decoded_bytes(*Message::descriptor(), body_);
    const std::string& type = Message::descriptor()->name();
    if (memory == UINT64_MAX) return problem(fmt::format("{} bytes are no {}", body_.size(), type));
    if (memory > kDecodedBytesMax) {
      return problem(fmt::format("a {} that would take {} MiB of memory", type, memory >> 20),
                     fmt::format("at most {}", kDecodedBytesMax >> 20));
    }
    const google::protobuf::LogSilencer quiet;  // the error contains what it would print
    if (!message->ParseFromArray(body_.data(), static_cast<int>(body_.size()))) {
      return problem(fmt::format("{} bytes are no {}", body_.size(), type), "the file is damaged");
    }
    return {};
  }

  // Adds the position to errors of the checker; errors of the sink are returned unchanged.
  Result<void> placed(Result<void> result) const {
    if (result) return result;
    Error& error = result.error();
    error.where = fmt::format("{}: byte {}{}{}", name_, start_, error.where.empty() ? "" : ": ", error.where);
    return result;
  }

  Result<void> record(char tag) {
    if ((tag == kHeaderTag) == have_header_) {
      return problem(have_header_ ? "a second header" : "the file does not start with a trace header",
                     have_header_ ? "" : "kvtwin traces are made by `kvtwin trace import`");
    }
    switch (tag) {
      case kHeaderTag: {
        have_header_ = true;
        v1::TraceHeader header;
        if (auto good = decode(&header); !good) return good;
        use_current_names(&header);
        if (auto good = placed(checker_.header(header)); !good) return good;
        return sink_->header(header);
      }
      case kSharedSpansTag: {
        v1::SharedSpanTable table;
        if (auto good = decode(&table); !good) return good;
        if (auto good = placed(checker_.shared_spans(table)); !good) return good;
        return sink_->shared_spans(table);
      }
      case kSessionTag:
        return take_session();
      case kFooterTag:
        return take_footer();
      default:
        return problem(fmt::format("a record with tag {}", static_cast<uint8_t>(tag)), "10, 18, 26 or 34");
    }
  }

  Result<void> take_session() {
    session_.Clear();
    if (auto good = decode(&session_); !good) return good;
    if (auto good = placed(checker_.session(session_)); !good) return good;
    checker_.count(session_, &counted_);
    return sink_->session(session_);
  }

  Result<void> take_footer() {
    v1::TraceFooter footer;
    if (auto good = decode(&footer); !good) return good;
    if (footer.sessions() != counted_.sessions() || footer.llm_requests() != counted_.llm_requests() ||
        footer.prompt_tokens() != counted_.prompt_tokens() ||
        footer.output_tokens() != counted_.output_tokens() || footer.tool_calls() != counted_.tool_calls()) {
      return problem(
          fmt::format("the footer counts {} sessions and {} requests, the file has {} and {}",
                      footer.sessions(), footer.llm_requests(), counted_.sessions(), counted_.llm_requests()),
          "the file is damaged; make it again");
    }
    counted_ = std::move(footer);
    return {};
  }

  std::istream& in_;
  const std::string& name_;
  TraceSink* sink_;
  SessionChecker checker_;
  std::string body_;
  v1::Session session_;
  v1::TraceFooter counted_;
  uint64_t offset_ = 0;  // of the next byte
  uint64_t start_ = 0;   // of the current record
  bool have_header_ = false;
};

}  // namespace

Result<v1::TraceFooter> read_trace(std::istream& in, const std::string& name, TraceSink* sink) {
  return Reading(in, name, sink).run();
}

Result<v1::TraceFooter> read_trace(const std::string& path, TraceSink* sink) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error))
    return make_error(path, "is a directory", "a trace is a file");
  if (Result<void> ok = check_regular_file(path); !ok) return tl::unexpected<Error>(ok.error());
  std::ifstream in(path, std::ios::binary);
  if (!in) return make_error(path, fmt::format("cannot be read: {}", std::strerror(errno)));
  return read_trace(in, path, sink);
}

bool looks_like_trace(std::string_view start) {
  // A header record starts with the field schema_version: tag 8.
  if (start.empty() || start[0] != kHeaderTag) return false;
  size_t i = 1;
  while (i < start.size() && i < 6 && (static_cast<uint8_t>(start[i]) & 0x80) != 0) ++i;
  return i + 1 < start.size() && start[i + 1] == 0x08;
}

}  // namespace kvtwin
