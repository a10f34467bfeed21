#include "engine/chat/chat_renderer.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "engine/base/prng.h"

using namespace kvtwin;

namespace {

constexpr Semantic kInst = Semantic::kInst, kUser = Semantic::kUser, kAssistant = Semantic::kAssistant,
                   kReasoning = Semantic::kReasoning, kToolCall = Semantic::kToolCall, kObs = Semantic::kObs,
                   kDelim = Semantic::kDelim;
constexpr uint32_t kAny = kContentToken;

std::vector<uint32_t> rendered(const ChatTemplate& chat, const std::vector<MessageSpan>& spans,
                               std::vector<size_t>* ends = nullptr) {
  ChatRenderer renderer(chat);
  std::vector<uint32_t> out;
  for (const MessageSpan& span : spans) {
    renderer.append(span, span.tokens, &out);
    if (ends != nullptr) ends->push_back(out.size());
  }
  return out;
}

MessageSpan text(Semantic semantic, uint32_t tokens, uint32_t turn = 1) {
  return {semantic, Modal::kText, turn, tokens};
}

// A conversation as agents have them. Mistral has no header before an answer, so there an answer follows a
// message of another role.
std::vector<MessageSpan> conversation(const ChatTemplate& chat, Prng* prng) {
  const auto below = [&](uint32_t n) { return static_cast<uint32_t>(prng->next() % n); };
  const auto tokens = [&] { return 12 + below(40); };
  const auto image = [&] {
    return !chat.image_tokens.empty() && below(4) == 0 ? Modal::kImage : Modal::kText;
  };
  const bool reasons = std::any_of(chat.brackets.begin(), chat.brackets.end(),
                                   [](const auto& bracket) { return bracket.semantic == kReasoning; });
  std::vector<MessageSpan> out;
  for (uint32_t i = below(3); i > 0; --i) out.push_back(text(kInst, tokens(), 0));
  for (uint32_t turn = 1; turn <= 1 + below(5); ++turn) {
    for (uint32_t i = 1 + below(2); i > 0; --i) out.push_back({kUser, image(), turn, tokens()});
    for (uint32_t step = below(4); step > 0; --step) {
      if (reasons && below(2) == 0) out.push_back(text(kReasoning, tokens(), turn));
      if (below(2) == 0) out.push_back(text(kAssistant, tokens(), turn));
      for (uint32_t i = 1 + below(2); i > 0; --i) out.push_back(text(kToolCall, tokens(), turn));
      for (uint32_t i = 1 + below(2); i > 0; --i) out.push_back({kObs, image(), turn, tokens()});
    }
    if (below(5) == 0) out.push_back(text(kDelim, 1 + below(3), turn));
    if (below(3) != 0) out.push_back(text(kAssistant, tokens(), turn));
  }
  return out;
}

}  // namespace

TEST_CASE("chat renderer: the ids of each template") {
  struct Row {
    const char* chat;
    std::vector<MessageSpan> spans;
    std::vector<uint32_t> ids;
  };
  const Row rows[] = {
      {"llama3",
       {text(kInst, 5, 0), text(kUser, 6), text(kToolCall, 7), text(kObs, 8), text(kAssistant, 7)},
       {128006, 9125,   128007, 271,    kAny,   128009, 128006, 882,    128007, 271,   kAny,
        128009, 128006, 78191,  128007, 271,    128010, kAny,   128009, 128006, 23799, 4690,
        128007, 271,    kAny,   kAny,   128009, 128006, 78191,  128007, 271,    kAny,  kAny}},
      {"chatml",
       {text(kUser, 5), text(kReasoning, 7), text(kToolCall, 4), text(kObs, 8), text(kAssistant, 7)},
       {151644, 872,    198,    kAny,   kAny,   151645, 151644, 77091,  198, 151667, kAny,
        kAny,   151668, 151657, kAny,   kAny,   151658, 151645, 151644, 872, 198,    151665,
        kAny,   kAny,   151666, 151645, 151644, 77091,  198,    kAny,   kAny}},
      {"mistral",
       {text(kInst, 2, 0), text(kUser, 3), text(kReasoning, 4), text(kAssistant, 2), text(kUser, 3, 2),
        text(kToolCall, 3), text(kObs, 4)},
       {17, kAny, 18, 3, kAny, 4, 34, kAny, kAny, 35, kAny, 2, 3, kAny, 4, 9, kAny, 2, 7, kAny, kAny}},
      // Texts of one turn are one message, and so are parallel calls; responses are a message each.
      {"chatml",
       {text(kUser, 4), text(kUser, 2), text(kToolCall, 6), text(kToolCall, 2), text(kUser, 7, 2)},
       {151644, 872,  198,  kAny,   kAny,   kAny,   151645, 151644, 77091, 198, 151657,
        kAny,   kAny, kAny, 151658, 151645, 151644, 872,    198,    kAny,  kAny}},
      {"mistral", {text(kObs, 2), text(kObs, 3)}, {7, kAny, 8, 7, kAny}},
      // A bracket that only the end of its message ends.
      {"llama3",
       {text(kToolCall, 6), text(kAssistant, 6)},
       {128006, 78191, 128007, 271, 128010, kAny, 128009, 128006, 78191, 128007, 271, kAny}},
      // Too short for the ids before it: the message before continues, and what follows is not affected.
      {"chatml",
       {text(kUser, 5), text(kAssistant, 3), text(kAssistant, 5)},
       {151644, 872, 198, kAny, kAny, kAny, kAny, kAny, 151645, 151644, 77091, 198, kAny}},
      // No content: only the ids.
      {"chatml", {text(kUser, 3), text(kUser, 5, 2)}, {151644, 872, 198, 151645, 151644, 872, 198, kAny}},
      // Mistral marks no answer at the start, nor one that follows a call.
      {"mistral",
       {text(kAssistant, 2), text(kToolCall, 2), text(kUser, 2), text(kToolCall, 3), text(kAssistant, 2),
        text(kObs, 3)},
       {kAny, kAny, kAny, kAny, 3, kAny, 4, 9, kAny, kAny, kAny, 2, 7, kAny}},
      {"llama3", {text(kUser, 3), text(kDelim, 2), text(kUser, 0)}, {kAny, kAny, kAny, 128000, 128000}},
      {"llama3", {{kUser, Modal::kImage, 1, 6}}, {128006, 882, 128007, 271, 128256, 128256}},
  };
  for (const Row& row : rows) {
    CAPTURE(row.chat);
    CHECK(rendered(*find_chat_template(row.chat), row.spans) == row.ids);
  }
}

TEST_CASE("chat renderer: what follows a span that is cut inside its ids is a message of its own") {
  for (const std::string& name : chat_template_names()) {
    const ChatTemplate& chat = *find_chat_template(name);
    for (uint32_t keep = 1; keep < 12; ++keep) {
      ChatRenderer renderer(chat);
      std::vector<uint32_t> ids;
      renderer.append(text(kUser, 20), 20, &ids);
      renderer.append(text(kObs, 20), keep, &ids);
      const size_t at = ids.size();
      renderer.append(text(kObs, 20), 20, &ids);
      renderer.append(text(kAssistant, 20), 20, &ids);
      RoleTagger tagger(chat);
      tagger.append(ids);
      CHECK(tagger.roles()[at + 19].semantic == kObs);
      CHECK(tagger.roles().back().semantic == kAssistant);
      CHECK(tagger.last_turn() == 1);
    }
  }
}

TEST_CASE("chat renderer: spans that are too short are reported") {
  ChatRenderer renderer(*find_chat_template("chatml"));
  std::vector<uint32_t> ids;
  CHECK(!renderer.append(text(kUser, 2), 2, &ids));
  CHECK(renderer.append(text(kUser, 3), 3, &ids));
  CHECK(renderer.append(text(kUser, 1), 1, &ids));  // needs no ids
  CHECK(ids.size() == 6);
}

TEST_CASE("chat renderer: the tagger finds the roles of the spans, in every template") {
  for (const std::string& name : chat_template_names()) {
    const ChatTemplate& chat = *find_chat_template(name);
    for (uint64_t seed = 0; seed < 300; ++seed) {
      CAPTURE(name);
      CAPTURE(seed);
      Prng prng(seed);
      const std::vector<MessageSpan> spans = conversation(chat, &prng);
      std::vector<size_t> ends;
      const std::vector<uint32_t> ids = rendered(chat, spans, &ends);
      RoleTagger tagger(chat);
      tagger.append(ids);
      REQUIRE(tagger.roles().size() == ids.size());
      CHECK(tagger.last_turn() == spans.back().turn);
      uint64_t wrong = 0, content = 0;
      for (size_t s = 0, at = 0; s < spans.size(); at = ends[s++]) {
        REQUIRE(ends[s] - at == spans[s].tokens);
        for (size_t i = at; i < ends[s]; ++i) {
          const TokenRole found = tagger.roles()[i];
          const bool delimiter = ids[i] != kAny && ids[i] != image_token(chat);
          content += !delimiter;
          wrong += delimiter ? found.semantic != kDelim
                             : !(found == TokenRole{spans[s].turn, spans[s].modal, spans[s].semantic});
        }
      }
      CHECK(wrong == 0);
      CHECK(content > ids.size() / 2);
    }
  }
}

TEST_CASE("chat renderer: ids depend on nothing that follows, and a span may be cut") {
  for (const std::string& name : chat_template_names()) {
    const ChatTemplate& chat = *find_chat_template(name);
    for (uint64_t seed = 0; seed < 50; ++seed) {
      Prng prng(seed);
      std::vector<MessageSpan> spans = conversation(chat, &prng);
      const std::vector<uint32_t> whole = rendered(chat, spans);
      const size_t keep = prng.next() % spans.size();
      const auto tokens = static_cast<uint32_t>(prng.next() % spans[keep].tokens);
      ChatRenderer renderer(chat);
      std::vector<uint32_t> part;
      for (size_t i = 0; i < keep; ++i) renderer.append(spans[i], spans[i].tokens, &part);
      renderer.append(spans[keep], tokens, &part);
      REQUIRE(part.size() < whole.size());
      CHECK(std::equal(part.begin(), part.end(), whole.begin()));
      // Tags of a common prefix are equal too, but for the turn of a header that nothing follows yet.
      RoleTagger one(chat), other(chat);
      one.append(part);
      other.append(whole);
      uint64_t different = 0;
      for (size_t i = 0; i < part.size(); ++i)
        different += one.roles()[i].semantic != other.roles()[i].semantic;
      CHECK(different == 0);
    }
  }
}
