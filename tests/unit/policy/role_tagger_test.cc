#include "engine/chat/role_tagger.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

using namespace kvtwin;

namespace {

// One letter per token: i u a r t o d (upper case: image), preceded by the turn where it changes.
std::string spell(std::span<const TokenRole> roles) {
  std::string text;
  uint32_t turn = UINT32_MAX;
  for (const TokenRole& role : roles) {
    if (role.turn != turn) {
      if (!text.empty()) text += ' ';
      text += std::to_string(role.turn);
    }
    turn = role.turn;
    const char letter = "iuartod"[static_cast<size_t>(role.semantic)];
    text += role.modal == Modal::kImage ? static_cast<char>(letter - 'a' + 'A') : letter;
  }
  return text;
}

std::string tag(const char* chat, const std::vector<uint32_t>& tokens) {
  RoleTagger tagger(*find_chat_template(chat));
  tagger.append(tokens);
  // Token by token gives the same.
  RoleTagger slow(*find_chat_template(chat));
  for (const uint32_t token : tokens) slow.append(std::span(&token, 1));
  CHECK(spell(slow.roles()) == spell(tagger.roles()));
  CHECK(tagger.roles().size() == tokens.size());
  return spell(tagger.roles());
}

constexpr uint32_t kX = 1000;  // any text token

}  // namespace

TEST_CASE("tags: 56 codes, each axis in its place") {
  CHECK(tag_code(Temporal::kOlder, Modal::kText, Semantic::kInst) == 0);
  CHECK(tag_code(Temporal::kOlder, Modal::kImage, Semantic::kInst) == 7);
  CHECK(tag_code(Temporal::kCurrent, Modal::kImage, Semantic::kDelim) == 55);
  CHECK(tag_code({2, Modal::kText, Semantic::kObs}, 4) == 14 + 5);
  CHECK(temporal_of(4, 4) == Temporal::kCurrent);
  CHECK(temporal_of(3, 4) == Temporal::kTurnM1);
  CHECK(temporal_of(2, 4) == Temporal::kTurnM2);
  CHECK(temporal_of(1, 4) == Temporal::kOlder);
  CHECK(temporal_of(0, 90) == Temporal::kOlder);
  CHECK(semantic_of_tag(19) == Semantic::kObs);
}

TEST_CASE("role tagger: Llama 3, two turns with a tool call") {
  CHECK(tag("llama3", {128000, 128006, 9125, 128007, 271, kX, kX, 128009}) == "0dddddiid");
  CHECK(tag("llama3", {128006, 882,    128007, 271,    kX,     128009, 128006, 78191,  128007, 271,    128010,
                       kX,     kX,     128008, 128006, 23799,  4690,   128007, 271,    kX,     128009, 128006,
                       78191,  128007, 271,    kX,     128009, 128006, 882,    128007, 271,    128256, kX}) ==
        "1ddddudddddd"
        "ttd"
        "dddddod"
        "ddddad"
        " 2dddd"
        "Uu");
  CHECK(tag("llama3", {128006, 78191, 128007, 271, 128013, kX, 128014, kX}) == "0dddddrda");
}

TEST_CASE("role tagger: ChatML, thinking and tool responses inside user messages") {
  CHECK(tag("chatml", {151644, 8948, 198, kX, 151657, kX, 151658, kX, 151645, 198}) == "0dddiiiiidd");
  CHECK(tag("chatml", {151644, 872, 198, kX, kX, 151645, 198, 151644, 77091, 198, 151667, kX, 151668, kX,
                       151657, kX, 151658, 151645, 198}) ==
        "1ddduudd"
        "dddd"
        "rda"
        "dtd"
        "dd");
  // A tool's answer inside a user message is an observation and starts no new turn; then a real turn follows.
  CHECK(tag("chatml", {151644, 872, 198, kX, 151645, 151644, 872, 198, 151665, kX, kX, 151666, 151645, 151644,
                       872, 198, kX}) ==
        "1dddud"
        "dddd"
        "oodd"
        " 2dddu");
  CHECK(tag("chatml", {151644, 14172, 198, kX, 151645}) == "0dddod");
  CHECK(tag("chatml", {151644, 872, 198, 151652, 151655, 151655, 151653, kX}) == "1dddUUUUu");
}

TEST_CASE("role tagger: Mistral's brackets replace headers") {
  CHECK(tag("mistral", {1, 17, kX, 18, 5, kX, 6, 3,  kX, kX, 4,  kX, 2,  3,  kX, 4,
                        9, kX, kX, 2,  7, kX, 8, kX, 2,  3,  10, 12, 13, kX, 4}) ==
        "0ddiddid 1duudad 2dud"
        "dttd"
        "dod"
        "ad"
        " 3dUUUud");
}

TEST_CASE("role tagger: input that is not a chat") {
  CHECK(tag("llama3", {kX, kX}) == "0uu");
  CHECK(tag("chatml", {}) == "");
  // A header that never ends is a body of an unknown role; an unclosed bracket ends with its message.
  CHECK(tag("llama3", std::vector<uint32_t>(12, kX)) == "0uuuuuuuuuuuu");
  CHECK(tag("llama3", {128006, 1, 2, 3, 4, 5, 6, 7, 8, kX, kX}) == "1ddddddddduu");
  CHECK(tag("chatml", {151644, 77091, 198, 151667, kX, 151645, 151644, 77091, 198, kX}) ==
        "0dddd"
        "rd"
        "ddda");
  CHECK(find_chat_template("alpaca") == nullptr);
}

TEST_CASE("role tagger: runs join equal neighbours") {
  RoleTagger tagger(*find_chat_template("chatml"));
  tagger.append(std::vector<uint32_t>{151644, 872, 198, kX, kX, 151645});
  const auto runs = runs_of(tagger.roles());
  REQUIRE(runs.size() == 3);
  CHECK(runs[1] == RoleRun{{1, Modal::kText, Semantic::kUser}, 2});
}
