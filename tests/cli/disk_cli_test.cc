// A disk below the host tier, on the command line.

#include "tests/cli/program.h"

using namespace kvtwin::testing;

namespace {

Outcome run_with(const Folder& folder, const Words& more) {
  return run_kvtwin(folder, Words{"run", "coding_agents_small", "--quiet"} + more);
}

// 128 KiB per token: pages of 16 tokens have 2 MiB. The longest request just fits, and prefixes leave the
// GPU.
const Words kSmall = {"--set=memory.gpu_pages=13000", "--set=memory.host_bytes=4000000000", "--format=json"};
const std::string kDisk = "--set=memory.disk_bytes=100000000000";

}  // namespace

TEST_CASE("disk: prefixes that do not fit on the host come back from the disk; log and coalescing agree") {
  const Folder folder;
  const Outcome host = succeeded(run_with(folder, kSmall + Words{"--no-write"}));
  CHECK(json_number(host.out, "hit_tokens_disk") == 0);
  CHECK(json_number(host.out, "disk_bytes_written") == 0);
  const Outcome disk =
      succeeded(run_with(folder, kSmall + Words{kDisk, "--record", "--out=" + folder.file("a")}));
  CHECK(json_number(disk.out, "hit_tokens_disk") > 10'000);
  CHECK(json_number(disk.out, "disk_bytes_written") >= json_number(disk.out, "disk_bytes_read"));
  CHECK(json_number(disk.out, "disk_bytes_read") == json_number(disk.out, "hit_tokens_disk") * 131'072);
  CHECK(json_number(disk.out, "reused_tokens_first") > json_number(host.out, "reused_tokens_first"));
  CHECK(run_kvtwin(folder, {"replay", folder.file("a")}).printed("same decisions"));

  const Outcome single =
      run_with(folder, kSmall + Words{kDisk, "--no-write", "--set=simulation.coalesce=false"});
  CHECK(after(single.out, "\"decisions\":") == after(disk.out, "\"decisions\":"));
  CHECK(json_number(single.out, "elapsed_s") == json_number(disk.out, "elapsed_s"));
}

TEST_CASE("disk: the CUDA engine refuses it") {
  const Folder folder;
  const Outcome outcome = run_with(folder, kSmall + Words{kDisk, "--no-write", "--backend=cuda"});
  // Without a GPU, or in a build without CUDA, that error comes first.
  if (outcome.status != 4) check_refused(outcome, "the CUDA engine has no disk tier");
}
