// Clusters on the command line: engines of several kinds, separated prefill and decode, prices.

#include <fstream>

#include "tests/cli/program.h"

using namespace kvtwin::testing;

namespace {

const std::string kClusterScenario = source_dir() + "/scenarios/shipped/coding_agents_small.textproto";

std::string run_line(const Folder& folder, Words sets, int status = 0) {
  Words words = {"run", kClusterScenario, "--no-write", "--quiet", "--format=jsonl"};
  for (const std::string& set : sets) words.push_back("--set=" + set);
  const Outcome run = run_kvtwin(folder, words);
  CHECK_MESSAGE(run.status == status, run.err);
  return status == 0 ? run.out : run.err;
}

}  // namespace

TEST_CASE("cluster: without a router, requests of sessions go to the engine that holds their prefix") {
  const Folder folder;
  const auto run = [&](const Words& more) {
    const Words words = Words{"run",
                              source_dir() + "/scenarios/shipped/coding_agents_small.textproto",
                              "--no-write",
                              "--quiet",
                              "--format=jsonl",
                              "--set=engines.count=2",
                              "--set=hardware.nodes=0",
                              "--set=replay.sessions_max=6"} +
                        more;
    return succeeded(run_kvtwin(folder, words)).out;
  };
  const std::string unstated = run({}), aware = run({"--set=engines.routing=prefix_aware"}),
                    turns = run({"--set=engines.routing=round_robin"});
  CHECK(after(unstated, "\"decisions\":") == after(aware, "\"decisions\":"));
  CHECK(json_number(unstated, "prefix_reuse") > json_number(turns, "prefix_reuse"));
  // Without cached prefixes there is nothing to find.
  CHECK(
      after(run({"--set=limits.prefix_cache=false"}), "\"decisions\":") ==
      after(run({"--set=limits.prefix_cache=false", "--set=engines.routing=round_robin"}), "\"decisions\":"));
}

TEST_CASE(
    "cluster: separated prefill and decode: every request once, tokens conserved, recorded and replayed") {
  const Folder folder;
  const Words sets = {"hardware.node=h200-x8", "engines.count=5", "engines.prefill=2",
                      "engines.routing=prefix_aware"};
  const std::string together = run_line(folder, {}), apart = run_line(folder, sets);
  for (const char* conserved :
       {"requests", "requests_finished", "prompt_tokens", "output_tokens", "sessions"}) {
    CHECK(json_number(apart, conserved) == json_number(together, conserved));
  }
  CHECK(json_number(apart, "requests_open") == 0);
  CHECK(json_number(apart, "transfer_bytes_received") > 0);
  CHECK(json_number(together, "transfer_bytes_received") == 0);
  // The parts of each request's time still sum to its latency.
  const double parts = json_number(apart, "time_queue_s") + json_number(apart, "time_transfer_s") +
                       json_number(apart, "time_prefill_s") + json_number(apart, "time_recompute_s") +
                       json_number(apart, "time_decode_s") + json_number(apart, "time_host_s");
  CHECK(parts == doctest::Approx(json_number(apart, "time_latency_s")).epsilon(1e-9));
  Words words = {"run", kClusterScenario, "--record", "--quiet", "--out=" + folder.file("r")};
  for (const std::string& set : sets) words.push_back("--set=" + set);
  const Outcome recorded = succeeded(run_kvtwin(folder, words));
  CHECK(recorded.printed("decisions=" + after(apart, "\"decisions\":\"").substr(0, 16)));
  const Outcome replayed = succeeded(run_kvtwin(folder, {"replay", folder.file("r")}));
}

TEST_CASE("cluster: coalescing changes nothing with separated prefill and decode") {
  const Folder folder;
  const auto sets = [](const char* coalesce) {
    return Words{"hardware.node=h200-x8", "engines.count=4", "engines.prefill=1",
                 "engines.routing=hint_aware", std::string("simulation.coalesce=") + coalesce};
  };
  const std::string coalesced = run_line(folder, sets("true")), single = run_line(folder, sets("false"));
  for (const char* figure :
       {"ttft_mean_ms", "tpot_p99_ms", "itl_p99_ms", "session_makespan_mean_ms", "steps"}) {
    CHECK(json_number(coalesced, figure) == json_number(single, figure));
  }
}

TEST_CASE("cluster: GPUs of several kinds, and their prices") {
  const Folder folder;
  std::ifstream in(kClusterScenario);
  std::stringstream text;
  text << in.rdbuf();
  const std::string path = folder.file("mixed.textproto");
  std::string mixed = text.str();
  const std::string trace = "../../traces/data/";
  if (const size_t at = mixed.find(trace); at != std::string::npos)
    mixed.replace(at, trace.size(), source_dir() + "/traces/data/");
  std::ofstream(path) << mixed
                      << "\nengines { further { node: \"l40s\" count: 2 } further { node: \"h200-x8\" "
                         "tensor_parallel: 2 } }\n";
  const Outcome run = succeeded(run_kvtwin(folder, {"run", path, "--no-write", "--quiet", "--format=jsonl"}));
  CHECK(json_number(run.out, "gpus") == 1 + 2 + 2);
  const std::string one = run_line(folder, {});
  CHECK(json_number(run.out, "gpu_pages") > json_number(one, "gpu_pages"));
  CHECK(json_number(run.out, "requests_finished") == json_number(one, "requests_finished"));
  // The price per hour times the hours of the run, per million tokens.
  const double spent = json_number(one, "usd_per_hour") * json_number(one, "elapsed_s") / 3600;
  CHECK(json_number(one, "usd_per_million_output_tokens") ==
        doctest::Approx(1e6 * spent / json_number(one, "output_tokens")));
  CHECK(
      json_number(one, "usd_per_million_tokens") ==
      doctest::Approx(1e6 * spent / (json_number(one, "output_tokens") + json_number(one, "prompt_tokens"))));
  // Without a connection between nodes no KV can be handed over.
  check_refused(run_kvtwin(folder, {"run", path, "--no-write", "--quiet", "--set=engines.prefill=1"}),
                "there is no way for KV from engines[0]");
  // Measurements of one kind of GPU do not apply to another.
  const Outcome priced =
      run_kvtwin(folder, {"run", path, "--no-write", "--quiet",
                          "--set=cost.profile=" + source_dir() + "/models/measured/h200.textproto"});
  CHECK(priced.status == 2);
  CHECK_MESSAGE(priced.said("holds measurements of one kind of GPU, but engines run on h200 and l40s"),
                priced.err);
}
