// Checks that the swarm can fail: bugs are planted in copies of the policy, and the swarm must find each of
// them.

#include <doctest/doctest.h>

#include <array>
#include <cstdio>
#include <string>
#include <utility>

namespace {

struct Run {
  int status = 0;
  std::string output;
};

Run run_seeds(const std::string& program, const std::string& seeds) {
  Run run;
  FILE* const pipe = popen((program + " " + seeds + " 2>&1").c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::array<char, 4'096> piece;
  while (const size_t bytes = std::fread(piece.data(), 1, piece.size(), pipe))
    run.output.append(piece.data(), bytes);
  run.status = pclose(pipe);
  return run;
}

}  // namespace

TEST_CASE("negative: every planted bug is caught within a thousand seeds, and the seed is named") {
  // The seeds that can expose each bug: any seed, or seeds whose requests drop KV entries, have two formats,
  // continue from compressed prefixes, swap out, swap out what was compressed, keep prefixes on the host, or
  // have a disk.
  constexpr std::pair<const char*, const char*> kBugs[] = {
      {"leak_on_preempt", "1 1000"},
      {"stale_pin", "1 1000"},
      {"unsafe_copy", "1 1000"},
      {"early_drop", "1000000 1001000"},
      {"stale_order", "1000000 1001000"},
      {"turn_ranked", "1000000 1001000"},
      {"kept_promise", "2000000 2001000"},
      {"open_tail", "3000000 3001000"},
      {"early_swap_out", "5000000 5001000"},
      {"awaited_swap_out", "6000000 6001000"},
      {"uncopied_swap_out", "6000000 6001000"},
      {"early_swap_in", "6000000 6001000"},
      {"early_fetch", "7000000 7001000"},
      {"hot_spill", "8000000 8001000"},
      {"stale_copy", "14000000 14001000"},
  };
  for (const auto& [bug, seeds] : kBugs) {
    CAPTURE(bug);
    const Run run = run_seeds("KVTWIN_PLANT=" + std::string(bug) + " \"" KVTWIN_PLANTED "\"", seeds);
    CAPTURE(run.output);
    CHECK(run.status != 0);
    const bool named = run.output.find("reproduce: kvtwin_swarm ") != std::string::npos ||
                       run.output.find("\nseed ") != std::string::npos;
    CHECK(named);
  }
}

TEST_CASE("negative: the same seeds pass without a planted bug") {
  const Run run = run_seeds("\"" KVTWIN_SOUND "\"", "1 1000");
  CAPTURE(run.output);
  CHECK(run.status == 0);
}
