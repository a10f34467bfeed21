// kvtwin_sign [--write] DIR...: checks every recording below DIR (log.binpb, and the run.binpb beside it):
// its log is replayed, every recorded decision must agree, and so must every digest. With --write the digests
// of the replay replace the recorded ones. Use it after a change of what the digest covers; a change of
// decisions is refused, because it needs another recording.

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "engine/recorder/recorder.h"
#include "engine/recorder/recorder_backend.h"
#include "engine/recorder/recorder_log.h"
#include "engine/recorder/recorder_records.h"
#include "engine/runtime/driver.h"
#include "traces/proto/run.pb.h"

namespace kvtwin {
namespace {

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream bytes;
  bytes << file.rdbuf();
  return bytes.str();
}

bool write_file(const std::string& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary);
  file << bytes;
  file.flush();
  return file.good();
}

Result<Log> replayed(const Log& log) {
  Recorder recorder(log.options, {log.scenario, log.seed});
  RecordedBackend backend(&log);
  RecordedClient client(&log);
  RunOptions options = log.options;
  options.check_invariants = true;
  return read_log("the replay",
                  recorder.finish(run(options, recorder.watch(&client), &backend, {&recorder})));
}

// The first decision that differs; digests are not compared. Empty: none.
std::string difference(const Log& a, const Log& b) {
  for (size_t i = 0; i < a.engines.size(); ++i) {
    const Log::Engine &was = a.engines[i], &is = b.engines[i];
    const auto same = [](const auto& one, const auto& other, auto equal) {
      return std::equal(one.begin(), one.end(), other.begin(), other.end(), equal);
    };
    if (was.ends != is.ends) return fmt::format("engine {}: other steps", i);
    using Steps = Log::CoalescedSteps;
    if (!same(was.coalesced_runs, is.coalesced_runs, [](const Steps& s, const Steps& t) {
          return s.step == t.step && s.steps == t.steps && s.plan == t.plan && s.eos == t.eos;
        }))
      return fmt::format("engine {}: a step has another plan", i);
    using Transfer = Log::Transfer;
    if (!same(was.transfers, is.transfers, [](const Transfer& s, const Transfer& t) {
          return s.number == t.number && s.at == t.at && s.failed == t.failed;
        }))
      return fmt::format("engine {}: other transfers", i);
    using Checkpoint = Log::Checkpoint;
    if (!same(was.checkpoints, is.checkpoints, [](const Checkpoint& s, const Checkpoint& t) {
          return s.steps == t.steps && s.outside == t.outside && s.at == t.at;
        }))
      return fmt::format("engine {}: other checkpoints", i);
  }
  return a.ended_at == b.ended_at ? "" : "it ends at another instant";
}

// Bytes may differ: a log of another version has fields that no longer exist.
bool same_digests(const Log& a, const Log& b) {
  if (a.digest != b.digest) return false;
  for (size_t i = 0; i < a.engines.size(); ++i) {
    const auto &was = a.engines[i].checkpoints, &is = b.engines[i].checkpoints;
    if (!std::equal(was.begin(), was.end(), is.begin(), is.end(),
                    [](const auto& one, const auto& other) { return one.digest == other.digest; }))
      return false;
  }
  return true;
}

// The log's bytes with the digests of `again`. REQUIRES: it passed read_log() and difference().
std::string with_digests(std::string_view bytes, const Log& again) {
  std::vector<size_t> checkpoints(again.engines.size());
  std::string out;
  std::string_view record;
  for (RecordReader reader(bytes); reader.next(&record);) {
    v1::LogRecord parsed;
    KVT_CHECK(parsed.ParseFromArray(record.data(), static_cast<int>(record.size())));
    if (parsed.has_end()) parsed.mutable_end()->set_digest(again.digest);
    if (parsed.has_checkpoint()) {
      const uint32_t engine = parsed.checkpoint().engine();
      parsed.mutable_checkpoint()->set_digest(
          again.engines[engine].checkpoints[checkpoints[engine]++].digest);
    }
    append_record(parsed, &out);
  }
  return out;
}

// Returns whether the recording is, or was made, right.
bool sign(const std::string& path, bool write) {
  const auto refuse = [&](const std::string& why) {
    fmt::print("{}: {}\n", path, why);
    return false;
  };
  const std::string bytes = read_file(path);
  const Result<Log> log = read_log(path, bytes);
  if (!log) return refuse(log.error().what);
  const Result<Log> again = replayed(*log);
  if (!again) return refuse(again.error().what);
  if (const std::string other = difference(*log, *again); !other.empty()) return refuse(other);
  const std::string result_path = (std::filesystem::path(path).parent_path() / "run.binpb").string();
  v1::RunResult result;
  if (!result.ParseFromString(read_file(result_path))) return refuse("no run.binpb beside it");
  if (result.decisions() != log->digest) return refuse("run.binpb is of another run");
  if (same_digests(*log, *again)) return true;
  if (!write) return refuse(fmt::format("digest {:016x}, recorded {:016x}", again->digest, log->digest));
  result.set_decisions(again->digest);
  if (!write_file(path, with_digests(bytes, *again)) || !write_file(result_path, result.SerializeAsString()))
    return refuse("cannot be written");
  return true;
}

}  // namespace
}  // namespace kvtwin

int main(int argc, char** argv) {
  const bool write = argc > 1 && std::string_view(argv[1]) == "--write";
  std::vector<std::string> logs;
  for (int i = write ? 2 : 1; i < argc; ++i) {
    for (const auto& file : std::filesystem::recursive_directory_iterator(argv[i])) {
      if (file.path().filename() == "log.binpb") logs.push_back(file.path().string());
    }
  }
  if (logs.empty()) {
    fmt::print(stderr, "kvtwin_sign [--write] DIR...: folders with recordings (log.binpb)\n");
    return 2;
  }
  std::sort(logs.begin(), logs.end());
  const auto bad = std::count_if(logs.begin(), logs.end(),
                                 [write](const std::string& log) { return !kvtwin::sign(log, write); });
  fmt::print("{} recordings, {} refused\n", logs.size(), bad);
  return bad == 0 ? 0 : 1;
}
