#include "models/profiles/recall_profile.h"

#include <doctest/doctest.h>

#include <string>

namespace kvtwin {
namespace {

RecallProfile some() {
  RecallProfile p;
  p.name = "freekv-some-model", p.model = "some-model", p.method = "freekv";
  p.layers = 2, p.kv_heads = 1, p.page_tokens = 32, p.selectable_pages = 8, p.contexts = 1, p.steps = 4;
  p.similarity = {0.5, 0.75}, p.similarity_deviation = {0.1, 0};
  p.tau = {0, 0.5, 1};
  p.correction_rate = {0, 0.25, 1, 0.5, 0.5, 0.75};
  p.miss_rate = {0.125, 0.25}, p.miss_by_step = {0.5, 0.25};
  return p;
}

}  // namespace

TEST_CASE("recall profile: corrections follow the table; below it none is corrected, above it all are") {
  const RecallProfile p = some();
  CHECK(p.corrections(0, -0.1) == 0);
  CHECK(p.corrections(0, 0) == 0);
  CHECK(p.corrections(0, 0.5) == 0.25);
  CHECK(p.corrections(0, 0.75) == doctest::Approx(0.625));
  CHECK(p.corrections(1, 0.25) == 0.5);
  CHECK(p.corrections(1, 1) == 0.75);
  CHECK(p.corrections(1, 1.01) == 1);
}

TEST_CASE("recall profile: textproto reads back unchanged, and errors are named") {
  const std::string text = recall_textproto(some());
  const auto back = parse_recall_profile(text, "r.textproto");
  REQUIRE_MESSAGE(back, (back ? std::string() : back.error().text()));
  CHECK(recall_textproto(*back) == text);
  CHECK(back->correction_rate == some().correction_rate);
  const auto complaint = [&](const std::string& from, const std::string& to) {
    std::string problem = text;
    REQUIRE(problem.find(from) != std::string::npos);
    problem.replace(problem.find(from), from.size(), to);
    const auto refused = parse_recall_profile(problem, "r.textproto");
    return refused ? std::string() : refused.error().text();
  };
  CHECK(complaint("layers: 2", "layers: 3").find("similarity has 2 entries; 3 are right") !=
        std::string::npos);
  CHECK(complaint("tau: [0, 0.5, 1]", "tau: [0, 1, 0.5]").find("tau does not ascend") != std::string::npos);
  CHECK(complaint("miss_rate: [0.125", "miss_rate: [1.5").find("miss_rate has the value 1.5") !=
        std::string::npos);
  CHECK(complaint("tau: [0, 0.5, 1]", "").find("tau does not ascend") != std::string::npos);
  CHECK(complaint("miss_rate", "mis_rate").find("did you mean") != std::string::npos);
}

}  // namespace kvtwin
