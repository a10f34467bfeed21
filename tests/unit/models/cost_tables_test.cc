#include "models/cost_tables/cost_tables.h"

#include <doctest/doctest.h>

#include "engine/base/prng.h"
#include "tests/unit/models/profile_files.h"
#include "tests/unit/models/test_data.h"

namespace kvtwin {
namespace {

using Counts = std::vector<uint32_t>;

TEST_CASE("cost_tables: axes and curves are read from the files") {
  const ProfileFiles files;
  const auto t = load_cost_tables(files.dir(), 1);
  REQUIRE_MESSAGE(t, (t ? std::string() : t.error().text()));
  CHECK(t->gpu == "Test");
  CHECK(t->attention.chunk == Counts{16, 32, 64});
  CHECK(t->attention.decodes == Counts{1, 2, 4, 8, 16, 32});
  // 32 decodes were measured without chunks only.
  CHECK(t->attention.decodes_mixed == Counts{1, 2, 4, 8, 16});
  CHECK(t->attention.pure[5].at == Counts{16, 64, 256, 1024});
  CHECK(t->attention.pure[5].us[3] == doctest::Approx(pure_unsplit_us(32, 1024)));
  CHECK(t->attention.prefill[2].at == Counts{0, 16, 64, 256, 1024});
  const ContextCurves& last = t->attention.mixed[2 * 5 + 4];
  CHECK(last.chunk_context == Counts{0, 16, 64, 256, 1024});
  CHECK(last.by_context[4].us[3] == doctest::Approx(mixed_us(64, 1024, 16, 1024)));
  CHECK(t->lm_head.at == Counts{1, 32});
}

TEST_CASE("cost_tables: chunks measured beyond the declared ones replace those between the ends") {
  const ProfileFiles files;
  std::string attention = files.read("tp1/attention.csv");
  attention += "24,0,0,0,5\n24,512,0,0,9\n24,0,2,100,6\n40,0,0,0,7\n40,0,2,64,8\n40,0,2,64,8.5\n";
  files.write("tp1/attention.csv", attention);
  const auto t = load_cost_tables(files.dir(), 1);
  REQUIRE_MESSAGE(t, (t ? std::string() : t.error().text()));
  CHECK(t->attention.chunk == Counts{16, 24, 40, 64});
  CHECK(t->attention.prefill[1].at == Counts{0, 512});
  CHECK(t->attention.decodes_mixed == Counts{2});
  CHECK(t->attention.mixed[1].by_context[0].at == Counts{100});
  CHECK_MESSAGE(t->attention.mixed[2].by_context[0].us[0] == 8.5, "measured again: the later row counts");
}

TEST_CASE("cost_tables: alpha is fitted over serving-sized contexts only, and never negative") {
  const ProfileFiles files;
  std::string skew = files.read("tp1/skew.csv");
  skew += "pure,4,1,0.5,4.0,0,0,512,2048,1280,100,300,60,\n";
  files.write("tp1/skew.csv", skew);
  const auto t = load_cost_tables(files.dir(), 1);
  REQUIRE(t);
  REQUIRE(t->skew_pure.size() == 5);
  CHECK(t->skew_pure[0].alpha == doctest::Approx(0.4));
  CHECK(t->skew_pure[1].decodes == 4);
  CHECK(t->skew_pure[1].alpha == 0);
  CHECK(t->skew_pure[2].alpha == doctest::Approx(0.1));
  CHECK(t->skew_chunk == Counts{16, 32, 64});
  CHECK(t->skew_mixed[1][1].alpha == doctest::Approx(0.25));
}

TEST_CASE("cost_tables: a profile without skew.csv or without a declared grid is accepted") {
  const ProfileFiles files;
  std::filesystem::remove(files.dir() + "/tp1/skew.csv");
  const auto t = load_cost_tables(files.dir(), 1);
  REQUIRE(t);
  CHECK(t->skew_pure.empty());
  files.write("meta.yaml", "gpu: Test\n");
  const auto undeclared = load_cost_tables(files.dir(), 1);
  REQUIRE(undeclared);
  CHECK(undeclared->attention.chunk == Counts{16, 32, 64});
}

TEST_CASE("cost_tables: every error names file and line") {
  const struct {
    const char* file;
    const char* find;
    const char* put;
    const char* message;
  } problem[] = {
      {"tp1/dense.csv", "layer,tokens,time_us", "layer,token,time_us", "tp1/dense.csv:1: the header is"},
      {"tp1/dense.csv", "embedding,8,", "embedding,-8,", "tp1/dense.csv:3: tokens is \"-8\""},
      {"tp1/dense.csv", "embedding,8,", "embedding,0,", "tp1/dense.csv:3: tokens is \"0\""},
      {"tp1/dense.csv", "embedding,1,1.01", "embedding,1,nan", "tp1/dense.csv:2: time_us is \"nan\""},
      {"tp1/dense.csv", "embedding,1,1.01", "embedding,1,1e99", "tp1/dense.csv:2: time_us is \"1e99\""},
      {"tp1/dense.csv", "embedding,1,1.01", "embedding,1", "tp1/dense.csv:2: has 2 fields"},
      {"tp1/dense.csv", "\nqkv_proj,", "\nxyz_proj,", "no row of layer"},
      {"tp1/attention.csv", "\n0,0,", "\n0,1,", "no row 0,0,N,K"},
      {"tp1/attention.csv", "16,0,0,0,", "16,0,0,1e9,", "kv_decode is \"1e9\""},
      {"tp1/skew.csv", "pure,2,", "poor,2,", "tp1/skew.csv:2: regime is \"poor\"; pure or mixed is right"},
      {"meta.yaml", "16-64 x2", "16-64 y2", "meta.yaml: attention_grid.chunks is"},
      {"meta.yaml", "gpu: Test", "gpu: [Test", "meta.yaml:"},
  };
  for (const auto& w : problem) {
    CAPTURE(std::string(w.put));
    const ProfileFiles files;
    std::string text = files.read(w.file);
    for (size_t at = text.find(w.find), once = 0; at != std::string::npos && (once == 0 || w.find[0] == '\n');
         at = text.find(w.find, at), once = 1) {
      text.replace(at, std::string(w.find).size(), w.put);
    }
    files.write(w.file, text);
    const auto t = load_cost_tables(files.dir(), 1);
    REQUIRE_FALSE(t);
    CHECK_MESSAGE(t.error().text().find(w.message) != std::string::npos, t.error().text());
  }
  const ProfileFiles files;
  const auto tp4 = load_cost_tables(files.dir(), 4);
  REQUIRE_FALSE(tp4);
  CHECK(tp4.error().text().find("no measurements for tensor parallelism 4") != std::string::npos);
  CHECK_FALSE(load_cost_tables(files.dir() + "/absent", 1));
}

TEST_CASE("cost_tables: damaged files give an error or tables, without a crash") {
  const ProfileFiles files;
  Prng draws(11);
  for (const char* name :
       {"meta.yaml", "tp1/dense.csv", "tp1/per_sequence.csv", "tp1/attention.csv", "tp1/skew.csv"}) {
    const std::string good = files.read(name);
    for (int i = 0; i < 60; ++i) {
      std::string bad = good.substr(0, i % 3 == 0 ? draws.range(0, good.size()) : good.size());
      for (int j = 0; j < 3 && !bad.empty() && i % 3 != 0; ++j) {
        bad[draws.range(0, bad.size() - 1)] = static_cast<char>(draws.range(0, 255));
      }
      files.write(name, bad);
      (void)load_cost_tables(files.dir(), 1);
    }
    files.write(name, good);
  }
  CHECK(load_cost_tables(files.dir(), 1));
}

TEST_CASE("cost_tables: the published profiles load") {
  for (const char* gpu : {"RTX4090", "RTXPRO6000"}) {
    const std::string folder = std::string("llmservingsim/profiles/") + gpu + "/meta-llama/Llama-3.1-8B";
    if (!have_test_data(folder)) {
      MESSAGE("no LLMServingSim profiles below $KVTWIN_DATA: skipped");
      return;
    }
    const auto t = load_cost_tables(test_data(folder), 1);
    REQUIRE_MESSAGE(t, (t ? std::string() : t.error().text()));
    // The second profile was refined by a factor of 1.5.
    CHECK(t->attention.chunk.size() == (gpu == std::string("RTX4090") ? 8 : 13));
    CHECK(t->attention.chunk.back() == 2048);
    CHECK(t->attention.decodes.back() == 256);
    CHECK(t->attention.decodes_mixed.back() == 128);
    CHECK(t->dense[0].at.size() == 152);
  }
}

}  // namespace
}  // namespace kvtwin
