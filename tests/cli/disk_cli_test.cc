// A disk below the host tier, on the command line.

#include "tests/cli/program.h"

using namespace kvtwin::testing;

namespace {

const std::string kAgents = KVTWIN_SOURCE_DIR "/scenarios/shipped/coding_agents_small.textproto";

Outcome run_with(const Folder& folder, const std::string& scenario, std::vector<std::string> more) {
  more.insert(more.begin(), {"run", scenario, "--quiet"});
  return run_kvtwin(folder, more);
}

// 128 KiB per token: pages of 16 tokens have 2 MiB. The longest request just fits, and prefixes leave the
// GPU.
const std::vector<std::string> kSmall = {"--set=memory.gpu_pages=13000", "--set=memory.host_bytes=4000000000",
                                         "--format=json"};
const std::string kDisk = "--set=memory.disk_bytes=100000000000";

std::vector<std::string> with(std::vector<std::string> words, const std::vector<std::string>& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

}  // namespace

TEST_CASE("disk: prefixes that do not fit on the host come back from the disk; log and coalescing agree") {
  const Folder folder;
  const Outcome host = run_with(folder, kAgents, with(kSmall, {"--no-write"}));
  REQUIRE_MESSAGE(host.status == 0, host.err);
  CHECK(json_number(host.out, "hit_tokens_disk") == 0);
  CHECK(json_number(host.out, "disk_bytes_written") == 0);
  const Outcome disk =
      run_with(folder, kAgents, with(kSmall, {kDisk, "--record", "--out=" + folder.file("a")}));
  REQUIRE_MESSAGE(disk.status == 0, disk.err);
  CHECK(json_number(disk.out, "hit_tokens_disk") > 10'000);
  CHECK(json_number(disk.out, "disk_bytes_written") >= json_number(disk.out, "disk_bytes_read"));
  CHECK(json_number(disk.out, "disk_bytes_read") == json_number(disk.out, "hit_tokens_disk") * 131'072);
  CHECK(json_number(disk.out, "reused_tokens_first") > json_number(host.out, "reused_tokens_first"));
  CHECK(run_kvtwin(folder, {"replay", folder.file("a")}).out.find("same decisions") != std::string::npos);

  const Outcome single =
      run_with(folder, kAgents, with(kSmall, {kDisk, "--no-write", "--set=simulation.coalesce=false"}));
  CHECK(after(single.out, "\"decisions\":") == after(disk.out, "\"decisions\":"));
  CHECK(json_number(single.out, "elapsed_s") == json_number(disk.out, "elapsed_s"));
}

TEST_CASE("disk: impossible settings are refused with position and remedy, status 2") {
  const Folder folder;
  const struct {
    std::vector<std::string> words;
    const char* message;
  } rows[] = {
      {{"--set=memory.host_bytes=0"}, "--set=memory.host_bytes=N; or"},
      {{"--set=limits.prefix_cache=false"}, "set prefix_cache: true"},
      {{"--set=memory.disk_bytes=8000000000000"}, "largest that fits: --set=memory.disk_bytes=3840000000000"},
      {{"--set=memory.disk_bytes=1000"}, "smallest that fits: --set=memory.disk_bytes=2097152"},
      {{"--set=hardware.node=l40s"}, "node l40s has no disk for KV"},
      {{"--set=engines.count=2", "--set=hardware.nodes=2"}, "a disk belongs to one"},
      {{"--backend=cuda"}, "the CUDA engine has no disk tier"},
  };
  for (const auto& row : rows) {
    CAPTURE(row.words.front());
    const Outcome outcome = run_with(folder, kAgents, with(with(kSmall, {kDisk, "--no-write"}), row.words));
    // This error comes first without a GPU, or in a build without CUDA.
    if (row.words.front() == "--backend=cuda" && outcome.status == 4) continue;
    CHECK(outcome.status == 2);
    CHECK_MESSAGE(outcome.said(row.message), outcome.err);
  }
}
