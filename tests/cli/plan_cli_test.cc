// kvtwin plan on the command line, compared with brute force.

#include <nlohmann/json.hpp>

#include "tests/cli/program.h"

using namespace kvtwin::testing;
using Json = nlohmann::json;

namespace {

const std::string kScenario = source_dir() + "/scenarios/shipped/coding_agents_small.textproto";
// Without pauses, so that the population equals the load of the GPUs.
const Words kCommon = {"--set=replay.arrivals=fixed_population",
                       "--set=replay.mode=closed_loop",
                       "--set=replay.think_cap_s=1",
                       "--set=replay.tool_scale=0",
                       "--set=hardware.nodes=0",
                       "--set=replay.replicas=2"};

Words words_of(const Words& words, const Words& more) { return words + kCommon + more; }

double ttft_p90(const Folder& folder, const std::string& node, const std::string& count, int population) {
  const Outcome run =
      succeeded(run_kvtwin(folder, words_of({"run", kScenario, "--no-write", "--quiet", "--format=jsonl"},
                                            {"--set=hardware.node=" + node, "--set=engines.count=" + count,
                                             "--set=replay.population=" + std::to_string(population)})));
  return json_number(run.out, "ttft_p90_ms");
}

}  // namespace

TEST_CASE("plan: agrees with brute force on a coarse grid of loads") {
  const Folder folder;
  const std::vector<int> loads = {2, 4, 8, 16, 32};
  const Outcome plan = run_kvtwin(
      folder, words_of({"plan", kScenario, "--quiet", "--format=json", "--allow-roofline", "--seeds=1"},
                       {"--vary=hardware.node=h200,l40s", "--vary=engines.count=1,2", "--slo=ttft_p90<1500ms",
                        "--load=replay.population=1..32", "--need=8", "--out=" + folder.file("p")}));
  REQUIRE_MESSAGE((plan.status == 0 || plan.status == 1), plan.err);
  const Json answer = Json::parse(plan.out);
  REQUIRE(answer["candidates"].size() == 4);
  std::string cheapest;
  double price = 1e9;
  int narrowed = 0;
  for (const Json& candidate : answer["candidates"]) {
    const std::string node = candidate["choices"]["hardware.node"],
                      count = candidate["choices"]["engines.count"];
    CAPTURE(candidate["name"]);
    double held = 0, broken = 1e9;
    bool at_need = false;
    for (const int load : loads) {
      const bool kept = ttft_p90(folder, node, count, load) <= 1500;
      if (load == 8) at_need = kept;
      if (kept && load < broken) held = load;
      if (!kept && load < broken) broken = load;
    }
    CHECK(candidate["holds"] == at_need);
    // The plan's limit is between the last load of the grid that holds and the first that breaks.
    CHECK(candidate["up_to"].get<double>() >= held);
    CHECK(candidate["up_to"].get<double>() < broken);
    // The interval is as narrow as requested, and both of its ends are correct.
    const int up_to = candidate["up_to"], breaks_at = candidate["breaks_at"];
    CAPTURE(up_to);
    CAPTURE(breaks_at);
    if (up_to > 0) CHECK(ttft_p90(folder, node, count, up_to) <= 1500);
    if (breaks_at > 0) CHECK(ttft_p90(folder, node, count, breaks_at) > 1500);
    if (up_to > 0 && breaks_at > 0) {
      CHECK(breaks_at > up_to);
      CHECK(breaks_at - up_to <= std::max(1.0, 0.05 * up_to));
      ++narrowed;
    }
    if (at_need && candidate["usd_per_hour"] < price) {
      price = candidate["usd_per_hour"];
      cheapest = candidate["name"];
    }
  }
  REQUIRE(!cheapest.empty());
  CHECK(narrowed > 0);
  CHECK(answer["best"] == cheapest);
  // A repetition finds all results.
  const Outcome again = run_kvtwin(
      folder, words_of({"plan", kScenario, "--allow-roofline", "--seeds=1"},
                       {"--vary=hardware.node=h200,l40s", "--vary=engines.count=1,2", "--slo=ttft_p90<1500ms",
                        "--load=replay.population=1..32", "--need=8", "--out=" + folder.file("p")}));
  CHECK(again.said(" 0 runs now, "));
  CHECK(!again.said(" 0 runs now, 0 found"));
  CHECK(again.printed(cheapest + " holds population = "));
}

TEST_CASE("plan: the table has the varied fields, the achieved values and the reason; the cost has a curve") {
  const Folder folder;
  const auto plan = [&](const std::string& format) {
    return run_kvtwin(
        folder,
        words_of({"plan", kScenario, "--quiet", "--allow-roofline", "--seeds=1", "--format=" + format},
                 {"--vary=engines.routing=round_robin,session_affine", "--vary=hardware.node=h200,l40s",
                  "--set=engines.count=2", "--slo=ttft_p90<1500ms", "--load=replay.population=1..16",
                  "--need=4", "--out=" + folder.file("p")}));
  };
  const Json answer = Json::parse(plan("json").out);
  const std::string text = plan("table").out;
  CHECK(text.find("routing  node  gpus   $/h  holds  up to  ttft_p90<1500ms at 4") != std::string::npos);
  const Json& curve = answer["cost_curve"];
  REQUIRE(!curve.empty());
  for (size_t i = 1; i < curve.size(); ++i) {
    CHECK(curve[i]["up_to"] > curve[i - 1]["up_to"]);
    CHECK(curve[i]["usd_per_hour"] >= curve[i - 1]["usd_per_hour"]);
  }
  // Round robin finds fewer prefixes, and the plan names that.
  bool named = false;
  for (const Json& candidate : answer["candidates"]) {
    CAPTURE(candidate.dump());
    CHECK(candidate.contains("nearest_promise") == !candidate["holds"].get<bool>());
    if (candidate["choices"]["engines.routing"] == "round_robin" &&
        candidate["choices"]["hardware.node"] == "h200")
      named = candidate.contains("reuse") && candidate["reuse"].get<std::string>().find(
                                                 "engines.routing=session_affine") != std::string::npos;
  }
  CHECK(named);
}

TEST_CASE("plan: refuses unmeasured hardware, and names the nearest promise that is kept") {
  const Folder folder;
  const auto plan = [&](Words more) {
    more.push_back("--out=" + folder.file("q"));
    return run_kvtwin(folder, words_of({"plan", kScenario, "--quiet"}, more));
  };
  const Outcome refused =
      plan({"--slo=ttft_p90<1s", "--load=replay.population=1..4", "--need=1", "--seeds=1"});
  CHECK(refused.status == 2);
  CHECK(refused.out.starts_with("Not judged: "));
  CHECK(refused.printed("100 % of its step time is not measured"));
  CHECK(Json::parse(folder.read("q/plan.json"))["not_judged"] == true);
  const Outcome none =
      plan({"--slo=ttft_p90<1us", "--load=replay.population=1..4", "--need=2", "--allow-roofline"});
  CHECK(none.status == 1);
  CHECK(none.printed("No candidate holds population = 2"));
  CHECK(none.printed("None holds even 1."));
  CHECK(none.printed("   <1  "));
  // The nearest promise is one that the candidate keeps.
  const size_t nearest = none.out.find("The nearest promise at 2: --slo='ttft_p90<=");
  REQUIRE_MESSAGE(nearest != std::string::npos, none.out);
  const size_t begin = none.out.find("ttft_p90<=", nearest);
  const std::string promise = none.out.substr(begin, none.out.find('\'', begin) - begin);
  const Outcome kept =
      plan({"--slo=" + promise, "--load=replay.population=1..4", "--need=2", "--allow-roofline"});
  CHECK_MESSAGE(kept.status == 0, kept.out);
  // Its page: the folder has the answer, and a report draws it.
  const Outcome page =
      succeeded(run_kvtwin(folder, {"report", folder.file("q"), "--out=" + folder.file("q.md")}));
  CHECK(folder.read("q.md").find("| ttft_p90<") != std::string::npos);
  const Json file = Json::parse(folder.read("q/plan.json"));
  CHECK(file["table"].size() == file["candidates"].size() + 1);
  CHECK(file["command"].get<std::string>().starts_with("kvtwin plan "));
  // The sessions' own pauses are the cause here.
  const Outcome sessions =
      plan({"--slo=session_p90<1s", "--load=replay.population=1..4", "--need=2", "--allow-roofline",
            "--set=replay.tool_scale=1", "--set=replay.think_cap_s=600"});
  CHECK(sessions.printed("breaks at 1, the least that was asked: tools and think time of the sessions"));
}

namespace {

Json plan_json(const Folder& folder, const Words& more) {
  const Words words = Words{"--allow-roofline", "--seeds=1", "--out=" + folder.file("r")} + more;
  const Outcome plan =
      succeeded(run_kvtwin(folder, words_of({"plan", kScenario, "--quiet", "--format=json"}, words)));
  return Json::parse(plan.out);
}

std::string plan_text(const Folder& folder, const Words& more) {
  const Words words = Words{"--allow-roofline", "--seeds=1", "--out=" + folder.file("r")} + more;
  return run_kvtwin(folder, words_of({"plan", kScenario, "--quiet"}, words)).out;
}

}  // namespace

TEST_CASE("plan: a bound of --load is no capacity") {
  const Folder folder;
  const Words words = {"--slo=ttft_p90<1h", "--load=replay.population=1..3", "--need=2"};
  const std::string text = plan_text(folder, words);
  CAPTURE(text);
  CHECK(
      text.find("holds population of at least 3, the most that was asked (2 needed, margin at least 50 %)") !=
      std::string::npos);
  CHECK(text.find("nothing breaks up to 3, the most that was asked") != std::string::npos);
  CHECK(text.find("  >=3  ") != std::string::npos);
  const Json answer = plan_json(folder, words);
  CHECK(answer["holds_more"] == true);
  CHECK(answer["candidates"][0]["up_to_text"] == ">=3");
}

TEST_CASE("plan: given prices decide, and the answer says that they are given") {
  const Folder folder;
  const Words words = {"--vary=hardware.node=h200,h100", "--slo=ttft_p90<1h", "--load=replay.population=1..2",
                       "--need=1"};
  const Json before = plan_json(folder, words);
  CHECK(before["best"] == "hardware.node=h100");
  Words priced = words;
  priced.push_back("--price=h200=0.5");
  const Json after = plan_json(folder, priced);
  CHECK(after["best"] == "hardware.node=h200");
  const auto h200 = [](const Json& answer) {
    for (const Json& candidate : answer["candidates"])
      if (candidate["name"] == "hardware.node=h200") return candidate;
    return Json();
  };
  CHECK(h200(after)["usd_per_hour"] == 0.5);
  CHECK(h200(after)["price_given"] == true);
  const double ratio = h200(before)["usd_per_hour"].get<double>() / 0.5;
  CHECK(h200(before)["usd_per_million_output_tokens"].get<double>() ==
        doctest::Approx(ratio * h200(after)["usd_per_million_output_tokens"].get<double>()));
  CHECK(plan_text(folder, priced).find("1 GPU, 0.50 $/h (given), ") != std::string::npos);
  CHECK(Json::parse(folder.read("r/plan.json"))["command"].get<std::string>().find("'--price=h200=0.5'") !=
        std::string::npos);
}

TEST_CASE("plan: the price counts GPUs in use, and the answer names the nodes that hold them") {
  const Folder folder;
  const std::string text = plan_text(
      folder, {"--set=hardware.node=h200-x8", "--set=engines.count=3", "--set=engines.tensor_parallel=4",
               "--slo=ttft_p90<1h", "--load=replay.population=1..2", "--need=1"});
  CAPTURE(text);
  CHECK(text.find("12 GPUs of 2 nodes, 42.00 $/h (assumed)") != std::string::npos);
  CHECK(text.find("The price is of the 12 GPUs in use; all 16 GPUs of the 2 nodes are 56.00 $/h.") !=
        std::string::npos);
}

TEST_CASE("plan: of candidates with equal price the one with more margin is the best") {
  const Folder folder;
  const Json answer = plan_json(folder, {"--vary=memory.gpu_pages=6000,20000", "--slo=ttft_p90<1500ms",
                                         "--load=replay.population=1..32", "--need=1"});
  REQUIRE(answer["candidates"][1]["holds"] == true);
  CHECK(answer["candidates"][0]["usd_per_hour"] == answer["candidates"][1]["usd_per_hour"]);
  CHECK(answer["candidates"][0]["up_to"] > answer["candidates"][1]["up_to"]);
  CHECK(answer["best"] == "memory.gpu_pages=20000");
}

TEST_CASE("plan: progress without a terminal; a fleet that is mostly idle is noted, in a run too") {
  const Folder folder;
  const Words words = {
      "--slo=ttft_p90<1h", "--load=replay.population=20..40", "--need=40", "--set=replay.think_cap_s=0",
      "--allow-roofline",  "--out=" + folder.file("i"),       "--seeds=1"};
  const Outcome plan = run_kvtwin(folder, words_of({"plan", kScenario}, words));
  CHECK_MESSAGE(plan.said("plan: round 1, 0 of 1 run; 0 made, 0 found, 0 s"), plan.err);
  CAPTURE(plan.out);
  CHECK(plan.printed("Note: at 40, on average "));
  CHECK(plan.printed(" of 40 sessions were in flight, because the trace has only 48"));
  const auto run = [&](const std::string& population) {
    return run_kvtwin(folder,
                      words_of({"run", kScenario, "--no-write", "--quiet"},
                               {"--set=replay.population=" + population, "--set=replay.think_cap_s=0"}));
  };
  CHECK(run("40").printed(" of 40 sessions were in flight, because the trace has only 48"));
  CHECK(!run("2").printed("sessions were in flight"));
}
