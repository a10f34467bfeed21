// kvtwin calibrate policy and inspect-policy: profiles measured on real data, and scenarios that use them.

#include <cmath>

#include "tests/cli/program.h"

using namespace kvtwin::testing;

namespace {

const std::string kScenario = KVTWIN_SOURCE_DIR "/scenarios/shipped/search_tiny.textproto";
constexpr char kSnapkv[] = "--set=policies.scorer=snapkv";

Words calibrate(const std::string& what, const Words& more) {
  Words words = {"calibrate", "policy", what, kScenario};
  // Few contexts, unless the test gives a number.
  for (const std::string few : {"--contexts=3", "--context-max=1100"}) {
    const std::string name = few.substr(0, few.find('=') + 1);
    const bool given =
        std::any_of(more.begin(), more.end(), [&](const auto& word) { return word.starts_with(name); });
    if (!given) words.push_back(few);
  }
  return words + more;
}

Words simulate(const Words& more) {
  return Words{"run", kScenario, "--quiet", "--no-write", "--format=jsonl"} + more;
}

// The command line of a run that retains by a profile.
Words reserved(const std::string& profile, const Words& more) {
  const Words words = Words{kSnapkv,
                            "--set=policies.scorer_options.compression_trigger=chunk_end",
                            "--set=policies.budget=reserved",
                            "--set=policies.layout=ragged",
                            "--set=policies.identity=none",
                            "--set=limits.prefix_cache=false",
                            "--set=limits.step_tokens_max=4096",
                            "--set=policies.layout_options.heads_per_group=2",
                            "--set=policies.budget_options.profile=" + profile} +
                      more;
  return simulate(words);
}

std::string value_of(const std::string& json, const std::string& key) {
  const size_t at = json.find("\"" + key + "\":");
  REQUIRE_MESSAGE(at != std::string::npos, json);
  const size_t begin = at + key.size() + 3;
  return json.substr(begin, json.find_first_of(",}", begin) - begin);
}

// Numbers of `name: [1, 2]`.
std::vector<double> list_of(const std::string& text, const std::string& name) {
  const size_t at = text.find("\n" + name + ": [");
  REQUIRE_MESSAGE(at != std::string::npos, name);
  const size_t begin = at + name.size() + 4;
  std::istringstream in(text.substr(begin, text.find(']', begin) - begin));
  std::vector<double> out;
  for (std::string word; std::getline(in, word, ',');) out.push_back(std::stod(word));
  return out;
}

}  // namespace

TEST_CASE("calibrate cli: budgets retain the requested ratio, reproducibly, and a scenario runs on them") {
  const Folder folder;
  const std::string file = folder.file("budgets.textproto");
  const Outcome made =
      succeeded(run_kvtwin(folder, calibrate("budgets", {kSnapkv, "--ratio=0.3", "--out=" + file})));
  CHECK(made.printed("reserved / kept"));
  const std::string text = folder.read("budgets.textproto");
  CHECK(text == run_kvtwin(folder, calibrate("budgets", {kSnapkv, "--ratio=0.3"})).out);
  CHECK(text.find("\nkept:") == std::string::npos);
  // The mean over heads of the fraction retained outside the window: (ratio n - window) / n, within one KV
  // entry per layer.
  const std::vector<double> mu = list_of(text, "mu"), contexts = list_of(text, "context_tokens");
  REQUIRE(mu.size() == 8);
  REQUIRE(contexts.size() == 3);
  double mean = 0, expected = 0;
  for (const double x : mu) mean += x / 8;
  for (const double n : contexts) expected += (0.3 * n - 32) / n / 3;
  CHECK(mean == doctest::Approx(expected).epsilon(0.005));
  CHECK(list_of(text, "fraction_mu").size() == 8);
  CHECK(list_of(text, "budget_q32").size() == 8);

  const Outcome ran = succeeded(run_kvtwin(folder, reserved(file, {"--set=simulation.retained=profile"})));
  CHECK(value_of(ran.out, "requests_finished") == "51");
  CHECK(value_of(ran.out, "requests_rejected") == "0");
  const Outcome fractions =
      succeeded(run_kvtwin(folder, reserved(file, {"--set=policies.budget_options.relative=true",
                                                   "--set=policies.budget_options.ratio=0.5"})));
  CHECK(value_of(fractions.out, "decisions") != value_of(ran.out, "decisions"));
  // The profile's content is an input of the run.
  const std::string other = folder.file("other.textproto");
  succeeded(run_kvtwin(folder, calibrate("budgets", {"--set=policies.scorer=knorm", "--out=" + other})));
  const Outcome changed = run_kvtwin(folder, reserved(other, {"--set=simulation.retained=profile"}));
  CHECK(value_of(changed.out, "inputs") != value_of(ran.out, "inputs"));
}

TEST_CASE(
    "calibrate cli: one threshold over all layers moves KV entries between layers, one per layer does not") {
  const Folder folder;
  const auto layer_means = [&](const Words& more) {
    const Words words =
        Words{"--set=policies.scorer=kvzip", "--set=policies.scorer_options.repeat_tokens=256"} + more;
    const Outcome made = succeeded(run_kvtwin(folder, calibrate("budgets", words)));
    const std::vector<double> mu = list_of(made.out, "mu");
    std::vector<double> out;
    for (size_t i = 0; i < mu.size(); i += 2) out.push_back((mu[i] + mu[i + 1]) / 2);
    return out;
  };
  const std::vector<double> each = layer_means({}), all = layer_means({"--all-layers"});
  double sum_each = 0, sum_all = 0, spread_each = 0, spread_all = 0;
  for (size_t l = 0; l < 4; ++l) {
    sum_each += each[l], sum_all += all[l];
    spread_each = std::max(spread_each, std::abs(each[l] - each[0]));
    spread_all = std::max(spread_all, std::abs(all[l] - all[0]));
  }
  CHECK(sum_each == doctest::Approx(sum_all).epsilon(0.01));
  CHECK(spread_each < 1e-9);
  CHECK(spread_all > 0.01);
}

TEST_CASE("calibrate cli: retention stores the fractions of every context, and is read back") {
  const Folder folder;
  const std::string file = folder.file("retention.textproto");
  const Outcome made = succeeded(run_kvtwin(folder, calibrate("retention", {kSnapkv, "--out=" + file})));
  const std::string text = folder.read("retention.textproto");
  const std::vector<double> kept = list_of(text, "retained"), mu = list_of(text, "mu");
  REQUIRE(kept.size() == 3 * 8);
  for (size_t h = 0; h < 8; ++h) CHECK((kept[h] + kept[8 + h] + kept[16 + h]) / 3 == doctest::Approx(mu[h]));
  succeeded(run_kvtwin(folder, reserved(file, {"--set=simulation.retained=profile"})));
}

TEST_CASE("calibrate cli: precision finds a tag map that a scenario can name") {
  const Folder folder;
  const std::string file = folder.file("tags.textproto");
  const auto words = [&](const Words& more) {
    const Words all = Words{"--rows=8", "--layers=2"} + more;
    return calibrate("precision", all);
  };
  const Outcome made = succeeded(run_kvtwin(folder, words({"--bits=2.7", "--out=" + file})));
  CHECK(made.printed("current text inst"));
  const std::string text = folder.read("tags.textproto");
  CHECK(text == run_kvtwin(folder, words({"--bits=2.7"})).out);
  CHECK(list_of(text, "two_bit_order").size() == 56);
  // Every tag that occurs loses less with 4 bits; with a budget of 4 bits no tag has 2.
  const Outcome all = run_kvtwin(folder, words({"--bits=4", "--out=" + folder.file("all.textproto")}));
  CHECK(all.printed("2 bits: 0.0 % of the tokens"));
  const Outcome none = run_kvtwin(folder, words({"--bits=2", "--out=" + folder.file("none.textproto")}));
  CHECK(none.printed("2 bits: 100.0 % of the tokens"));
  // A map that is blind to an axis has equal bits along it.
  const auto bits = [&](const std::string& blind) {
    const Outcome done = succeeded(run_kvtwin(folder, words({"--bits=3", "--blind=" + blind})));
    std::vector<bool> out(56, false);
    for (const double tag : list_of(done.out, "four_bit_tags")) out.at(static_cast<size_t>(tag)) = true;
    CHECK(list_of(done.out, "two_bit_order").size() == 56);
    return out;
  };
  const std::vector<bool> no_time = bits("temporal"), no_meaning = bits("semantic");
  for (size_t tag = 0; tag < 56; ++tag) {
    CHECK(no_time[tag] == no_time[tag % 14]);
    CHECK(no_meaning[tag] == no_meaning[tag - tag % 7]);
  }
  CHECK(bits("none") != no_meaning);
  const Outcome ran = succeeded(
      run_kvtwin(folder, simulate({"--set=policies.precision=triaxial", "--set=memory.page_tokens=32",
                                   "--set=policies.precision_options.ageing=forecast",
                                   "--set=policies.precision_options.tag_map=" + file})));
}

TEST_CASE("calibrate cli: retrieval finds corrections and misses that a simulated run reproduces") {
  const Folder folder;
  const std::string scenario = KVTWIN_SOURCE_DIR "/scenarios/methods/tiny/freekv.textproto";
  const std::string file = folder.file("recall.textproto");
  const Words words = {"calibrate", "policy", "retrieval", scenario, "--contexts=2", "--steps=24"};
  Words with_out = words;
  with_out.push_back("--out=" + file);
  const Outcome made = succeeded(run_kvtwin(folder, with_out));
  const std::string text = folder.read("recall.textproto");
  CHECK(text == run_kvtwin(folder, words).out);
  const std::vector<double> tau = list_of(text, "tau"), rates = list_of(text, "correction_rate"),
                            misses = list_of(text, "miss_rate"), similar = list_of(text, "similarity");
  REQUIRE(tau.size() == 41);
  REQUIRE(rates.size() == 4 * 41);
  REQUIRE(misses.size() == 4);
  CHECK(misses[0] == 0);  // layers_dense: 1
  double corrected = 0, missed = 0;
  for (size_t l = 1; l < 4; ++l) {
    CHECK(std::is_sorted(rates.begin() + static_cast<ptrdiff_t>(l * 41),
                         rates.begin() + static_cast<ptrdiff_t>(l * 41 + 41)));
    CHECK(misses[l] > 0);
    CHECK(misses[l] < 1);
    CHECK(std::abs(similar[2 * l]) <= 1);
    corrected += rates[l * 41 + 20] / 3;  // at tau 0, the scenario's
    missed += misses[l] / 3;
  }
  CHECK(tau[20] == 0);
  const Words run = {"run",
                     scenario,
                     "--backend=sim",
                     "--no-write",
                     "--quiet",
                     "--format=jsonl",
                     "--set=simulation.retrieval.outcomes=profile",
                     "--set=simulation.retrieval.profile=" + file};
  const Outcome ran = succeeded(run_kvtwin(folder, run));
  CHECK(std::stod(value_of(ran.out, "retrieval_correction_rate")) ==
        doctest::Approx(corrected).epsilon(0.15));
  CHECK(std::stod(value_of(ran.out, "retrieval_miss_rate")) == doctest::Approx(missed).epsilon(0.15));
  // The CPU engine has the same rates; it reads only the pages that it selected.
  const Outcome natural = succeeded(run_kvtwin(folder, {"run", scenario, "--backend=cpu", "--clock=virtual",
                                                        "--no-write", "--quiet", "--format=jsonl"}));
  for (const char* rate : {"retrieval_correction_rate", "retrieval_miss_rate"})
    CHECK(std::stod(value_of(ran.out, rate)) ==
          doctest::Approx(std::stod(value_of(natural.out, rate))).epsilon(0.1));
  const Outcome always = run_kvtwin(folder, run + Words{"--set=policies.retrieval_options.tau=1.5"});
  CHECK(value_of(always.out, "retrieval_correction_rate") == "1.0");
  Words problem = run;
  problem[6] = "--set=simulation.retrieval.outcomes=fixed";
  CHECK(run_kvtwin(folder, problem).said("a profile is not read with outcomes fixed"));
  CHECK(run_kvtwin(folder, run + Words{"--set=model.name=llama-3.1-8b"})
            .said("freekv-llama-4x256 has 4 layers of 2 KV heads, llama-3.1-8b has 32 of 8"));
}

TEST_CASE("inspect cli: the oracle hits everything, random hits by chance, larger budgets lose less") {
  const Folder folder;
  const Words words = {"inspect-policy",   kScenario,       "--contexts=3",    "--context-max=1100",
                       "--budgets=64,256", "--response=16", "--error-tokens=4"};
  const auto inspect = [&](const Words& more) { return run_kvtwin(folder, words + more); };
  const Outcome csv = succeeded(inspect({"--scorers=oracle,snapkv,knorm,random", "--format=csv"}));
  CHECK(csv.out == inspect({"--scorers=oracle,snapkv,knorm,random", "--format=csv"}).out);
  CHECK(csv.out.starts_with("scorer,budget,layer,contexts,hit_rate,floor,error\n"));
  struct Sum {
    double hits = 0, floor = 0, error = 0;
    int rows = 0;
  };
  std::map<std::pair<std::string, int>, Sum> sums;
  for (const CsvRow& row : csv_rows(csv.out)) {
    Sum& sum = sums[{row.at("scorer"), std::stoi(row.at("budget"))}];
    sum.hits += std::stod(row.at("hit_rate"));
    sum.floor += std::stod(row.at("floor"));
    sum.error += std::stod(row.at("error"));
    ++sum.rows;
  }
  REQUIRE(sums.size() == 8);
  for (const int budget : {64, 256}) {
    const Sum& oracle = sums[{"oracle", budget}];
    const Sum& random = sums[{"random", budget}];
    CHECK(oracle.rows == 4);
    CHECK(oracle.hits == 4.0);
    CHECK(random.hits == doctest::Approx(random.floor).epsilon(0.25));
  }
  for (const char* scorer : {"oracle", "snapkv", "knorm", "random"}) {
    CAPTURE(scorer);
    CHECK(sums[{scorer, 64}].floor < sums[{scorer, 256}].floor);
    CHECK(sums[{scorer, 64}].error > sums[{scorer, 256}].error);
  }
  const Outcome table = inspect({"--scorers=oracle,random"});
  CHECK(table.printed("100.00 % +-  0.00"));
  const size_t random = table.out.find("\n  random ");
  REQUIRE(random != std::string::npos);
  const double margin = std::stod(table.out.substr(table.out.find("+-", random) + 2));
  CHECK((margin > 0 && margin < 10));
  CHECK(table.printed("weights drawn from seed 42"));
  const Outcome json = inspect({"--scorers=random", "--format=json"});
  CHECK(json.out.find("[{\"scorer\":\"random\",\"budget\":64,\"layer\":0,\"contexts\":3,\"hit_rate\":0.") ==
        0);
}

TEST_CASE("calibrate cli: a profile that does not belong to the scenario is refused") {
  const Folder folder;
  const std::string file = folder.file("p.textproto");
  folder.write("requests.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-01-01 00:00:00.000000,300,4\n");
  succeeded(run_kvtwin(folder, calibrate("budgets", {"--set=policies.scorer=knorm", "--out=" + file})));
  const struct {
    Words words;
    std::string message;
  } rows[] = {
      {reserved(file, {"--set=policies.budget_options.ratio=0.5"}),
       "ratio is 0.5, knorm-llama-4x256 was made at 0.3"},
      {reserved(file, {"--set=policies.budget_options.mean=0.5"}),
       "profile cannot be combined with mean or deviation"},
      {reserved(folder.file("none.textproto"), {}), "does not exist"},
      {reserved(folder.file("requests.csv"), {}), "policies.budget_options.profile"},
      {reserved(file, {"--set=model.name=llama-3.1-8b", "--set=memory.gpu_pages=20000"}),
       "knorm-llama-4x256 has 4 layers of 2 KV heads, the engine has 32 of 8"},
  };
  for (const auto& row : rows) check_refused(run_kvtwin(folder, row.words), row.message);
}
