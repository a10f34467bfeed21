#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "engine/base/prompt_span_finder.h"

using namespace kvtwin;

namespace {

// A prompt as one letter per span, each followed by its number of tokens:
//   I instruction  u user  U user, marked as a query  a assistant  r reasoning  c tool call  o tool result
//   d template token  ? no role
PromptSpans spans_of(const std::string& prompt) {
  PromptSpanFinder finder;
  for (size_t at = 0; at < prompt.size();) {
    const char kind = prompt[at];
    size_t used = 0;
    const auto tokens = static_cast<uint32_t>(std::stoul(prompt.substr(at + 1), &used));
    at += 1 + used;
    while (at < prompt.size() && prompt[at] == ' ') ++at;
    const std::string kinds = "IuUarcod";
    constexpr Semantic kSemanticOf[] = {Semantic::kInst,      Semantic::kUser,      Semantic::kUser,
                                        Semantic::kAssistant, Semantic::kReasoning, Semantic::kToolCall,
                                        Semantic::kObs,       Semantic::kDelim};
    const size_t index = kinds.find(kind);
    finder.add(index == std::string::npos ? std::nullopt : std::optional(kSemanticOf[index]), kind == 'U',
               tokens);
  }
  return finder.find();
}

struct PromptRow {
  const char* what;
  const char* prompt;
  PromptSpans found;
};

const PromptRow kPromptRows[] = {
    {"no tokens", "", {}},
    {"no roles", "?100", {}},
    {"instructions alone ask nothing", "I20 d3", {}},
    {"model output alone asks nothing", "I20 a5", {}},
    {"a system prompt and a question", "I20 u5", {20, {20, 25}, {20, 25}}},
    {"no system prompt", "u5", {0, {0, 5}, {0, 5}}},
    {"the header of the first message is part of the template before it",
     "I20 d3 u5 d4",
     {23, {23, 28}, {23, 32}}},
    {"the newest of two questions, with its template tokens",
     "I20 u5 a9 d2 d1 u7 d3",
     {20, {37, 44}, {34, 47}}},
    {"a tool's result is newer than the question", "I20 U5 r6 c4 d2 o30 d3", {20, {37, 67}, {35, 70}}},
    {"results of parallel tools are one message", "I20 U5 c4 o10 d2 o11", {20, {29, 52}, {29, 52}}},
    {"a question after a tool's result", "I20 u5 c4 o10 u6", {20, {39, 45}, {39, 45}}},
    {"a marked question precedes unmarked text of the same turn", "I20 a3 U5 u6", {20, {23, 28}, {23, 28}}},
    {"an unmarked question precedes a marked one before an answer", "I20 U5 a3 u6", {20, {28, 34}, {28, 34}}},
    {"an unmarked question precedes a marked one before a tool's result",
     "I20 U5 o3 u6",
     {20, {28, 34}, {28, 34}}},
    {"blocks of one message join, if they are marked alike", "I20 a3 u2 U5 d1 U6", {20, {25, 37}, {25, 37}}},
    {"the prompt ends with the start of an answer", "I20 u5 d2 a4", {20, {20, 25}, {20, 27}}},
    {"tokens without a role are passed over", "I20 u5 ?9", {20, {20, 25}, {20, 25}}},
    {"instructions between messages are no template before the first",
     "I20 u5 a4 I7 u3 I2",
     {20, {36, 39}, {36, 39}}},
    {"a long message counts by its end", "I20 u5 c4 d2 o1000 d3", {20, {775, 1031}, {775, 1034}}},
    {"as long as a message may be", "I20 d2 u256 d3", {22, {22, 278}, {22, 281}}},
};

}  // namespace

TEST_CASE("prompt spans: the newest message of the user or of a tool, by roles") {
  for (const PromptRow& row : kPromptRows) {
    CAPTURE(std::string(row.what));
    const PromptSpans found = spans_of(row.prompt);
    CHECK(found.prefix == row.found.prefix);
    CHECK(found.query.begin == row.found.query.begin);
    CHECK(found.query.end == row.found.query.end);
    CHECK(found.around.begin == row.found.around.begin);
    CHECK(found.around.end == row.found.around.end);
    CHECK(found.valid(5'000));
  }
}
