#include <fmt/format.h>
#include <sys/resource.h>

#include <sstream>

#include "engine/base/prng.h"
#include "tests/unit/traces/support.h"
#include "traces/format/reader.h"
#include "traces/format/record.h"
#include "traces/format/writer.h"

using namespace kvtwin;
using namespace kvtwin::testing;

namespace {

v1::TraceHeader small_header() {
  v1::TraceHeader header;
  header.set_schema_version(kTraceSchemaVersion);
  header.set_trace_id("t");
  return header;
}

v1::Session small_session(int number) {
  v1::Session session;
  session.set_id(fmt::format("s{}", number));
  session.add_agents();
  v1::LlmRequest& request = *session.add_nodes()->mutable_llm();
  request.set_prompt_tokens(100);
  request.set_output_tokens(static_cast<uint32_t>(number));
  return session;
}

std::string small_trace(const Folder& dir) {
  TraceWriter writer(dir.file("t.trace"));
  REQUIRE(writer.header(small_header()).has_value());
  for (int i = 0; i < 3; ++i) REQUIRE(writer.session(small_session(i)).has_value());
  REQUIRE(writer.done().has_value());
  return slurp(dir.file("t.trace"));
}

std::string read_error(const std::string& bytes) {
  std::istringstream in(bytes);
  KeepAll all;
  const auto footer = read_trace(in, "x", &all);
  CHECK(all.ended == footer.has_value());
  return footer ? "" : footer.error().text();
}

}  // namespace

TEST_CASE("TraceWriter: a written trace is read back, and offsets point at sessions") {
  const Folder dir;
  const std::string bytes = small_trace(dir);
  std::istringstream in(bytes);
  KeepAll all;
  const auto footer = read_trace(in, "x", &all);
  REQUIRE(footer.has_value());
  CHECK(all.head.trace_id() == "t");
  REQUIRE(all.sessions.size() == 3);
  CHECK(all.sessions[2].SerializeAsString() == small_session(2).SerializeAsString());
  CHECK(footer->llm_requests() == 3);
  CHECK(footer->prompt_tokens() == 300);
  CHECK(footer->output_tokens() == 3);
  for (const uint64_t offset : footer->session_offsets()) CHECK(bytes.at(offset) == kSessionTag);
  v1::TraceFile whole;  // the file is one message, so that protoc --decode shows it
  REQUIRE(whole.ParseFromString(bytes));
  CHECK(whole.sessions_size() == 3);
}

TEST_CASE("TraceWriter: a file appears when it is complete, and a partial file is removed") {
  const Folder dir;
  const std::string path = dir.write("t.trace", "old");
  {
    TraceWriter writer(path);
    REQUIRE(writer.header(small_header()).has_value());
    REQUIRE(writer.session(small_session(1)).has_value());
    CHECK(std::filesystem::exists(path + ".part"));
  }
  CHECK(slurp(path) == "old");
  CHECK(!std::filesystem::exists(path + ".part"));
  TraceWriter below(dir.file("new/folder/t.trace"));
  CHECK(below.header(small_header()).has_value());
  TraceWriter nowhere(path + "/t.trace");  // `path` is a file
  CHECK(contains(nowhere.header(small_header()).error().text(), "its folder cannot be made"));
}

TEST_CASE("TraceWriter: does not write a session that breaks a rule") {
  const Folder dir;
  TraceWriter writer(dir.file("t.trace"));
  REQUIRE(writer.header(small_header()).has_value());
  v1::Session bad = small_session(1);
  bad.mutable_nodes(0)->set_agent(5);
  CHECK(!writer.session(bad).has_value());
}

TEST_CASE("reader: provenance under a message's old name is that of the message") {
  const Folder dir;
  const std::string path = dir.file("old.kvtrace");
  v1::TraceHeader header = small_header();
  v1::FieldPolicy& policy = *header.add_policies();
  policy.set_field(std::string("Llm") + "Call.think_ns");  // split: the tidy test bans the old name
  policy.set_prov(v1::SYNTHESISED);
  {
    TraceWriter writer(path);
    REQUIRE(writer.header(header).has_value());
    REQUIRE(writer.session(small_session(0)).has_value());
    REQUIRE(writer.done().has_value());
  }
  std::istringstream in(slurp(path));
  KeepAll all;
  REQUIRE(read_trace(in, "x", &all).has_value());
  const v1::FieldPolicy& read = *all.head.policies().rbegin();
  CHECK(read.field() == "LlmRequest.think_ns");
  CHECK(read.prov() == v1::SYNTHESISED);
}

TEST_CASE("reader: a truncated file is an error with the byte, never a trace") {
  const Folder dir;
  const std::string bytes = small_trace(dir);
  for (size_t size = 0; size < bytes.size(); ++size) {
    CAPTURE(size);
    const std::string said = read_error(bytes.substr(0, size));
    CHECK(contains(said, "x: byte "));
  }
  CHECK(read_error(bytes) == "");
  CHECK(contains(read_error(bytes + "x"), "bytes after the footer"));
}

TEST_CASE("reader: a file with any byte changed is a trace or an error") {
  const Folder dir;
  const std::string bytes = small_trace(dir);
  Prng prng(3);
  int refused = 0;
  for (size_t at = 0; at < bytes.size(); ++at) {
    for (int i = 0; i < 8; ++i) {
      std::string changed = bytes;
      changed[at] = static_cast<char>(prng.next());
      refused += !read_error(changed).empty();
    }
  }
  CHECK(refused > 0);
}

TEST_CASE("reader: garbage and foreign files are recognised at once") {
  CHECK(contains(read_error("{\"timestamp\": 0}"), "byte 0"));
  CHECK(contains(read_error(""), "byte 0: the file ends without a footer"));
  CHECK(contains(read_error(std::string(1000, '\xff')), "length is not a number"));
}

TEST_CASE("reader: a length of 1 GB, and a record that would take gigabytes decoded, are refused") {
  std::string huge(1, kHeaderTag);
  append_varint(uint64_t{1} << 30, &huge);
  CHECK(contains(read_error(huge + std::string(100, 'x')), "a record of 1073741824 bytes"));

  // 16 MiB of empty nodes: two bytes each in the file, hundreds in memory.
  std::string body;
  for (int i = 0; i < 8 << 20; ++i) body += std::string("\x3a\x00", 2);
  const Folder dir;
  std::string bytes = small_trace(dir);
  bytes.resize(bytes.find("s0") - 4);  // the header alone
  bytes.push_back(kSessionTag);
  append_varint(body.size(), &bytes);
  const std::string said = read_error(bytes + body);
  CAPTURE(said);
  CHECK(contains(said, "MiB of memory"));
}

TEST_CASE("reader: a 1 GB file of zeros is refused at once, in little memory") {
  const Folder dir;
  const std::string path = dir.write("zeros", "");
  std::filesystem::resize_file(path, uint64_t{1} << 30);  // sparse
  KeepAll all;
  CHECK(!read_trace(path, &all).has_value());
  std::string lies(1, kHeaderTag);
  append_varint(kRecordBytesMax, &lies);
  std::filesystem::resize_file(dir.write("lies", lies), uint64_t{1} << 30);
  const auto footer = read_trace(dir.file("lies"), &all);
  REQUIRE(!footer.has_value());
  CHECK(contains(footer.error().text(), "are no TraceHeader"));
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  CHECK(usage.ru_maxrss < 1'000'000);  // KiB; includes ASan's shadow memory
}

TEST_CASE("reader: the footer must count what the file holds") {
  const Folder dir;
  std::string bytes = small_trace(dir);
  v1::TraceFile whole;
  REQUIRE(whole.ParseFromString(bytes));
  whole.mutable_sessions()->RemoveLast();
  CHECK(contains(read_error(whole.SerializeAsString()), "the footer counts 3 sessions"));
}
