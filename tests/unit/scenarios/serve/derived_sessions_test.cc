#include "scenarios/serve/derived_sessions.h"

#include <doctest/doctest.h>

#include <numeric>
#include <optional>
#include <string>
#include <vector>

using namespace kvtwin;

namespace {

// Each letter is a token. `span`: the letters up to the end of the first user message; 0: no roles.
struct SessionRow {
  const char* what;
  const char* prompt;
  uint32_t span;
  std::optional<uint64_t> session;
};

const SessionRow kSessionRows[] = {
    {"the first request starts a session", "SYSask1", 7, 0},
    {"its prompt, the answer and a further question continue it", "SYSask1+answer+more", 7, 0},
    {"the same first message, another continuation: a session of its own", "SYSask1+other+more", 7, 1},
    {"each of them goes on by itself", "SYSask1+answer+more+yes+thanks", 7, 0},
    {"... and the other", "SYSask1+other+more+no", 7, 1},
    {"the same prompt again extends nothing", "SYSask1", 7, 2},
    {"another first message behind the same system prompt", "SYSask2", 7, 3},
    {"an edited history extends nothing", "SYSask1+anSwer+more+yes+thanks+bye", 7, 2},
    {"a short prompt without roles is private", "SYSask1+answer", 0, std::nullopt},
};

std::vector<uint64_t> tokens_of(const std::string& text) { return {text.begin(), text.end()}; }

std::vector<uint64_t> numbers(uint64_t first, size_t count) {
  std::vector<uint64_t> out(count);
  std::iota(out.begin(), out.end(), first);
  return out;
}

}  // namespace

TEST_CASE("derived sessions: a request continues the session whose newest prompt it extends") {
  DerivedSessions sessions(100);
  for (const SessionRow& row : kSessionRows) {
    CAPTURE(std::string(row.what));
    CHECK(sessions.session_of(tokens_of(row.prompt), row.span) == row.session);
  }
  CHECK(sessions.remembered() == 4);
}

TEST_CASE("derived sessions: without roles, the first 256 tokens are the key") {
  DerivedSessions sessions(100);
  CHECK(sessions.session_of(numbers(0, 255), 0) == std::nullopt);
  CHECK(sessions.session_of(numbers(0, 256), 0) == 0);
  CHECK(sessions.session_of(numbers(0, 300), 0) == 0);
  CHECK(sessions.session_of(numbers(1, 300), 0) == 1);
  CHECK(sessions.session_of(numbers(0, 299), 0) == 2);  // shorter than the session's newest prompt
}

TEST_CASE("derived sessions: the session that was used longest ago is forgotten first") {
  DerivedSessions sessions(2);
  CHECK(sessions.session_of(tokens_of("a"), 1) == 0);
  CHECK(sessions.session_of(tokens_of("b"), 1) == 1);
  CHECK(sessions.session_of(tokens_of("a2"), 1) == 0);
  CHECK(sessions.session_of(tokens_of("c"), 1) == 2);  // forgets b
  CHECK(sessions.session_of(tokens_of("a23"), 1) == 0);
  CHECK(sessions.session_of(tokens_of("b2"), 1) == 3);  // forgets c
  CHECK(sessions.remembered() == 2);
}
