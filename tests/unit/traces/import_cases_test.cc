// Decision tables of the importers, import_cases/*.txt: small files of every format, and what they become.
// Beside comments (#), a file has
//
//   == TITLE            a case, of the lines that follow
//   file NAME           a file, of the indented lines that follow; the first of a case is imported
//   path NAME           another file or folder than the first is imported
//   format FORMAT       how; `guess FORMAT`: the format must also be found by the content
//   option NAME=VALUE   block_tokens, infer_sessions
//   note TEXT           a part of a note
//   replays             replaying recorded service times gives the recorded starts
//   header              fields of the header, of the indented textproto that follows
//   session             fields of the next session, in the same form; one block for each session
//
// Fields that are not named may have any value; a list that is named has no other elements.

#include <google/protobuf/text_format.h>
#include <google/protobuf/util/message_differencer.h>

#include "tests/unit/traces/hostile.h"

using namespace kvtwin;
using namespace kvtwin::testing;

namespace {

using google::protobuf::Message;

struct Part {
  std::string word, rest, text;  // text: its indented lines
};

class ImportCase {
 public:
  explicit ImportCase(const std::vector<Part>& parts) {
    std::string path, format, text;  // text: of the first file
    for (const Part& part : parts) {
      if (part.word == "file") {
        const std::string file = folder_.write(part.rest, part.text);
        if (path.empty()) path = file, text = part.text;
      } else if (part.word == "path") {
        path = folder_.file(part.rest);
      } else if (part.word == "format" || part.word == "guess") {
        format = part.rest;
        if (part.word == "guess") CHECK(guess_format(path).value_or("") == format);
      } else if (part.rest == "infer_sessions=true") {
        options_.infer_sessions = true;
      } else if (part.rest.starts_with("block_tokens=")) {
        options_.block_tokens = static_cast<uint32_t>(std::stoul(part.rest.substr(13)));
      }
    }
    options_.notes = &notes_;
    all_ = imported(format, path, options_);
    size_t sessions = 0;
    for (const Part& part : parts) {
      if (part.word == "note") {
        const auto has = [&](const std::string& note) { return contains(note, part.rest); };
        CHECK_MESSAGE(std::any_of(notes_.begin(), notes_.end(), has), part.rest);
      } else if (part.word == "replays") {
        for (const v1::Session& session : all_.sessions) {
          for (const StepError& error : step_errors(session)) CHECK(error.ns == 0);
        }
      } else if (part.word == "header") {
        expect(part.text, all_.head);
      } else if (part.word == "session") {
        REQUIRE(sessions < all_.sessions.size());
        expect(part.text, all_.sessions[sessions++]);
      }
    }
    CHECK(sessions == all_.sessions.size());
    CHECK(hostile(format, "damaged", text) >= 0);
  }

 private:
  static void expect(const std::string& text, const Message& found) {
    const std::unique_ptr<Message> expected(found.New());
    REQUIRE_MESSAGE(google::protobuf::TextFormat::ParseFromString(text, expected.get()), text);
    google::protobuf::util::MessageDifferencer differ;
    differ.set_scope(google::protobuf::util::MessageDifferencer::PARTIAL);
    std::string differences;
    differ.ReportDifferencesToString(&differences);
    CHECK_MESSAGE(differ.Compare(*expected, found), differences << found.DebugString());
  }

  const Folder folder_;
  ImportOptions options_;
  std::vector<std::string> notes_;
  KeepAll all_;
};

size_t check_file(const std::filesystem::path& path) {
  std::string title;
  std::vector<Part> parts;
  size_t cases = 0;
  const auto finish = [&] {
    if (title.empty()) return;
    CAPTURE(title);
    ImportCase one(parts);
    parts.clear();
    ++cases;
  };
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    if (line.empty() || line[0] == '#') continue;
    if (line.starts_with("  ")) {
      REQUIRE(!parts.empty());
      parts.back().text += line.substr(2) + "\n";
    } else if (line.starts_with("== ")) {
      finish();
      title = line.substr(3);
    } else {
      const size_t end = std::min(line.find(' '), line.size());
      parts.push_back({line.substr(0, end), line.substr(std::min(end + 1, line.size())), ""});
    }
  }
  finish();
  return cases;
}

}  // namespace

TEST_CASE("import cases: small files of every format become these sessions") {
  size_t cases = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(source_dir() + "/tests/unit/traces/import_cases")) {
    const std::string name = entry.path().filename();
    CAPTURE(name);
    cases += check_file(entry.path());
  }
  CHECK(cases >= 20);
}
