// Scorers that use more than the prompt's own queries: Judge Q's probe tokens and IntentKV's memory; and the
// isolation of sessions.

#include <numeric>

#include "engine/cpu/compression/probe_attention.h"
#include "kernels/scoring/keep_metrics.h"
#include "tests/unit/cpu_compression/compress_run.h"

using namespace kvtwin;
using namespace kvtwin::testing;

namespace {

using Retained = WitnessCache::Retained;
using RowSeen = WitnessCache::RowSeen;

constexpr uint32_t kRequestsPerSession = 3;

RunOf probe_run(const Method& method, const LlmSpec& llm) {
  RunOf out{.llm = llm, .config = config_of(method, llm), .seed = 4};
  out.client = {.sessions = 3,
                .requests_per_session = kRequestsPerSession,
                .prompt_tokens_max = 60,
                .output_tokens_max = 16};
  return out;
}

bool is_forced(const Retained& retained, uint32_t p) {
  const auto& forced = retained.compression->forced;
  return std::any_of(forced.begin(), forced.end(),
                     [&](const Compression::Forced& f) { return p >= f.begin && p < f.end; });
}

// The budget's selection by `score`, as a set of positions.
std::vector<uint32_t> chosen(const Retained& retained, uint32_t count,
                             const std::function<double(uint32_t)>& score) {
  std::vector<std::pair<double, uint32_t>> order;
  std::vector<uint32_t> out;
  for (const uint32_t p : retained.before) {
    if (is_forced(retained, p)) {
      out.push_back(p);
    } else {
      order.emplace_back(score(p), p);
    }
  }
  std::sort(order.rbegin(), order.rend());
  for (size_t i = 0; i < std::min<size_t>(count, order.size()); ++i) out.push_back(order[i].second);
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace

TEST_CASE("J-1 probes: Judge Q's probe tokens leave every KV entry of the request unchanged, byte for byte") {
  for (const LlmSpec& llm : gqa_and_mha()) {
    const ModelWeights weights = ModelWeights::random(llm, 3);
    cpu::Forward forward(&weights);
    const RopeFrequencies rope = rope_frequencies(llm);
    LayoutSpec layout{.layers = llm.layers, .kv_heads = llm.kv_heads};
    cpu::RequestTableShape shape;
    shape.groups = GroupMap(layout, {});
    shape.tables.page_tokens = 4;
    auto store = cpu::KvEntryStore::make({.page_tokens = 4, .pages_gpu = 3}, llm, &shape, 8);
    REQUIRE(store);
    cpu::RequestTable kv_entries(&shape);
    for (const uint32_t page : {2u, 0u, 1u}) kv_entries.allocate(0, PageId{page});
    kv_entries.add(10, true);
    const std::vector<float> values = random_floats(1, 4096);
    const auto all = [&](bool write) {
      std::vector<float> out;
      for (uint32_t head = 0; head < llm.layers * llm.kv_heads; ++head) {
        for (uint32_t kv_entry = 0; kv_entry < 12; ++kv_entry) {
          const cpu::Place at = kv_entry < 10 ? kv_entries.place(0, kv_entry) : cpu::Place{1, kv_entry - 8};
          if (write) store->write(head, at, &values[head * 7 + kv_entry], &values[head * 5 + kv_entry + 99]);
          out.insert(out.end(), store->key(head, at), store->key(head, at) + llm.head_dim);
          out.insert(out.end(), store->value(head, at), store->value(head, at) + llm.head_dim);
        }
      }
      return bits_of(out);
    };
    const uint64_t before = all(true);
    cpu::ProbeAttention pass(&*store, &kv_entries, &llm, &rope);
    pass.set_rows(5);
    forward.pass(random_floats(2, size_t{5} * llm.hidden), &pass);
    CHECK(all(false) == before);
    CHECK(kv_entries.tokens() == 10);
    CHECK(pass.probes()[1].queries.size() == size_t{5} * llm.query_heads * llm.head_dim);
  }
}

TEST_CASE(
    "J-3 probes: probe tokens that are the response itself retain the entries that the response attends to") {
  for (const LlmSpec& llm : gqa_and_mha()) {
    // The response's own queries, on a cache without drops: [request][query head of all][position].
    std::map<RequestId, std::map<uint32_t, std::vector<double>>> score_heads;
    std::map<RequestId, uint32_t> prompts, rows;
    RunOf full = probe_run({"judge_q", "uniform", "ragged", 1}, llm);
    full.config.policies.budget_spec.kv_entries = 8192;
    full.hook = [&](WitnessCache* witness) {
      witness->prompt_ended = [&](RequestId request, uint32_t tokens) { prompts[request] = tokens; };
      witness->row_seen = [&](const RowSeen& row) {
        if (!prompts.contains(row.request) || row.position < prompts[row.request]) return;
        if (row.position >= prompts[row.request] + 5) return;
        rows[row.request] = row.position - prompts[row.request] + 1;
        std::vector<double>& sum = score_heads[row.request][row.layer * llm.query_heads + row.query_head];
        sum.resize(prompts[row.request], 0.0);
        for (uint32_t p = 0; p < prompts[row.request]; ++p) sum[p] += row.weights[p];
      };
    };
    run_of(full);

    std::vector<kernels::HitCount> hits;
    RunOf oracle = probe_run({"judge_q", "uniform", "ragged", 1}, llm);
    oracle.ask_response = true;
    uint64_t other = 0;
    oracle.judge = [&](const Retained& retained) {
      if (rows[retained.request] == 0) return;  // an output of one token is never an input
      const uint32_t group = llm.query_heads / llm.kv_heads;
      const uint32_t first =
          retained.head / llm.kv_heads * llm.query_heads + retained.head % llm.kv_heads * group;
      const auto joined = [&](int64_t p) {
        double sum = 0;
        for (uint32_t g = 0; g < group; ++g)
          sum += score_heads[retained.request][first + g][static_cast<size_t>(p)];
        return static_cast<double>(static_cast<float>(sum / group / rows[retained.request]));
      };
      const std::vector<uint32_t> expected = chosen(retained, 10, [&](uint32_t p) {
        double most = 0;  // the largest of seven neighbours
        for (int64_t at = int64_t{p} - 3; at <= int64_t{p} + 3; ++at) {
          if (at >= 0 && at < int64_t{retained.tokens}) most = std::max(most, joined(at));
        }
        return most;
      });
      std::vector<uint32_t> both;
      std::set_intersection(retained.after.begin(), retained.after.end(), expected.begin(), expected.end(),
                            std::back_inserter(both));
      hits.push_back({both.size(), expected.size()});
      other += retained.before.size() - retained.after.size();
    };
    run_of(oracle);
    CHECK(hits.size() > 10);
    CHECK(other > 0);
    CHECK(kernels::hit_rate(hits) == 1.0);

    // Untrained soft tokens fail the check, so it is not vacuous.
    oracle.ask_response = false;
    hits.clear();
    run_of(oracle);
    CHECK(kernels::hit_rate(hits) < 0.999);
  }
}

namespace {

// IntentKV's memory and rule, written once more from docs/design/methods/intentkv.md#scorer in doubles.
class IntentWitness {
 public:
  IntentWitness(const LlmSpec& llm, const kernels::IntentSpec& form) : llm_(llm), spec_(form) {}

  // The positions that each request asks at.
  void launched(const LaunchStep& launch) {
    for (const PlanEntry& entry : launch.entries) {
      if (entry.kind == EntryKind::kChunk) query_[entry.request] = entry.query;
    }
  }
  void saw(const RowSeen& row) {
    asked_[row.request][row.layer * llm_.query_heads + row.query_head][row.position] = row.query;
  }
  void prompt_ended(RequestId request) {
    if (!any_asked(request)) return;  // all of it was reused
    ++remembered_;
    std::vector<Memory>& turns = turns_[raw(request) / kRequestsPerSession];
    const bool best = spec_.memory == kernels::MemoryForm::kMaxOverTurns;
    if (best || turns.empty()) turns.emplace_back(heads(), std::vector<double>(llm_.head_dim, 0.0));
    for (uint32_t j = 0; j < heads(); ++j) {
      const std::vector<double> query = mean_query(request, j);
      const double scale = spec_.query_norm == kernels::QueryNorm::kUnit || best ? 1 / length_of(query) : 1.0;
      std::vector<double>& memory = turns.back()[j];
      for (uint32_t d = 0; d < llm_.head_dim; ++d) memory[d] = 0.9 * memory[d] + query[d] * scale;
      const double length = length_of(memory);
      for (double& x : memory) x /= length;
    }
  }
  // By position of those that are ranked.
  std::map<uint32_t, double> scores(const Retained& retained) const {
    std::map<uint32_t, double> out;
    const auto known = turns_.find(raw(retained.request) / kRequestsPerSession);
    if (known == turns_.end()) return out;
    const std::vector<Memory>& turns = known->second;
    double factor = 1;
    for (auto turn = turns.rbegin(); turn != turns.rend(); ++turn, factor *= 0.9) {
      for (const auto& [p, score] : scores_by(*turn, retained)) out[p] = std::max(out[p], factor * score);
    }
    return out;
  }

  uint32_t remembered() const { return remembered_; }
  // Whether some request asked at other positions than the last of its prompt.
  bool asks_before_end() const { return asks_before_end_; }

 private:
  using Memory = std::vector<std::vector<double>>;  // by query head of all layers

  uint32_t heads() const { return llm_.layers * llm_.query_heads; }
  static double length_of(const std::vector<double>& x) {
    return std::sqrt(std::inner_product(x.begin(), x.end(), x.begin(), 0.0));
  }
  bool any_asked(RequestId request) {
    const TokenRange asks = query_.at(request);
    for (const auto& [position, query] : asked_[request][0]) {
      if (position >= asks.end) asks_before_end_ = true;
    }
    const auto first = asked_[request][0].lower_bound(asks.begin);
    return first != asked_[request][0].end() && first->first < asks.end;
  }
  std::vector<double> mean_query(RequestId request, uint32_t head) {
    std::vector<double> mean(llm_.head_dim, 0.0);
    uint32_t rows = 0;
    const TokenRange asks = query_.at(request);
    for (const auto& [position, query] : asked_[request][head]) {
      if (position < asks.begin || position >= asks.end) continue;
      ++rows;
      for (uint32_t d = 0; d < llm_.head_dim; ++d) mean[d] += query[d];
    }
    for (double& x : mean) x /= rows;
    return mean;
  }
  std::map<uint32_t, double> scores_by(const Memory& memory, const Retained& retained) const {
    std::map<uint32_t, double> out;
    for (uint32_t j = 0; j < heads(); ++j) {
      std::map<uint32_t, double> weight;
      double sum = 0;
      for (const uint32_t p : retained.before) {
        if (is_forced(retained, p)) continue;
        const std::vector<double> key = retained.rotated_key(
            p, j / llm_.query_heads, j % llm_.query_heads / (llm_.query_heads / llm_.kv_heads));
        const double logit = std::inner_product(key.begin(), key.end(), memory[j].begin(), 0.0);
        sum += weight[p] = std::exp(logit / std::sqrt(static_cast<double>(llm_.head_dim)));
      }
      for (const auto& [p, w] : weight) out[p] += w / sum / heads();
    }
    return out;
  }

  const LlmSpec& llm_;
  const kernels::IntentSpec spec_;
  // Queries by request, query head of all layers, and position.
  std::map<RequestId, std::map<uint32_t, std::map<uint32_t, std::vector<double>>>> asked_;
  std::map<uint32_t, std::vector<Memory>> turns_;  // by session, oldest turn first
  std::map<RequestId, TokenRange> query_;
  uint32_t remembered_ = 0;
  bool asks_before_end_ = false;
};

// `roles`: prompts say what they ask; else their last four tokens do.
void check_intent(const char* layout, const LlmSpec& llm, const kernels::IntentSpec& form, bool roles) {
  IntentWitness expected(llm, form);
  RunOf what = probe_run({"intent_rule", "uniform", layout}, llm);
  what.scorer = [&](kernels::ScoreSpec* spec) { spec->intent = form; };
  what.client.spans = roles;
  if (roles) {  // drawn messages are longer than four tokens
    what.client.prompt_tokens_max = 120;
    what.config.policies.budget_spec.kv_entries = 60;
    what.config.policies.budget_spec.sinks_free = true;
  }
  what.launched = [&](const LaunchStep& launch, uint32_t) { expected.launched(launch); };
  what.hook = [&](WitnessCache* witness) {
    witness->row_seen = [&](const RowSeen& row) { expected.saw(row); };
    witness->prompt_ended = [&](RequestId request, uint32_t) { expected.prompt_ended(request); };
  };
  uint64_t later = 0, judged = 0, ordered = 0;
  what.judge = [&](const Retained& retained) {
    if (retained.head != 0) return;  // one score for all heads
    double worst_retained = INFINITY, best_dropped = 0;
    for (const auto& [p, s] : expected.scores(retained)) {
      const bool left = std::binary_search(retained.after.begin(), retained.after.end(), p);
      if (left) worst_retained = std::min(worst_retained, s);
      if (!left) best_dropped = std::max(best_dropped, s);
    }
    CHECK(worst_retained >= best_dropped * (1 - 1e-5));
    ordered += worst_retained < INFINITY && best_dropped > 0;
    later += raw(retained.request) % kRequestsPerSession > 0;
    ++judged;
  };
  run_of(what);
  CHECK(judged > 5);
  CHECK(later > 2);
  CHECK(ordered > 5);
  CHECK(expected.remembered() > 5);
  CHECK(expected.asks_before_end() == roles);
}

}  // namespace

TEST_CASE(
    "I-1 probes: IntentKV retains the entries that its session's queries attended to, through all turns") {
  kernels::IntentSpec raw_queries, best_of_turns;
  raw_queries.query_norm = kernels::QueryNorm::kRaw;
  best_of_turns.memory = kernels::MemoryForm::kMaxOverTurns;
  for (const char* layout : {"page_mask", "slot_mask", "compact"}) {
    for (const LlmSpec& llm : gqa_and_mha()) {
      for (const kernels::IntentSpec& form : {kernels::IntentSpec{}, raw_queries, best_of_turns})
        check_intent(layout, llm, form, false);
      check_intent(layout, llm, {}, true);
    }
  }
}

TEST_CASE("I-3 X-6 probes: dropped entries still match, and no position is recomputed for them") {
  for (const char* layout : {"page_mask", "slot_mask"}) {
    for (const LlmSpec& llm : gqa_and_mha()) {
      RunOf what = probe_run({"intent_rule", "uniform", layout}, llm);
      const RunResult pruned = run_of(what);
      what.config.policies.budget_spec.kv_entries = 8192;
      const RunResult whole = run_of(what);
      CHECK(pruned.dropped > 0);
      CHECK(whole.dropped == 0);
      CHECK(pruned.reused_dropped > 0);
      CHECK(whole.reused_dropped == 0);
      CHECK(pruned.reused == whole.reused);
      CHECK(pruned.rows == whole.rows);
    }
  }
}

TEST_CASE(
    "X-5 probes: equal tokens of two sessions retain equal KV entries, for scorers that depend on the prefix "
    "alone") {
  for (const char* scorer : {"knorm", "keydiff", "random", "fastkvzip", "trimkv"}) {
    for (const LlmSpec& llm : gqa_and_mha()) {
      RunOf what = probe_run({scorer, "ratio", "ragged", 1}, llm);
      what.config.prefix_cache = false;
      // Prompts with a common prefix are compressed alike, chunk by chunk, as far as they agree.
      WitnessCache* witness = nullptr;
      uint64_t compared = 0;
      std::map<std::pair<std::vector<uint32_t>, uint32_t>, std::vector<uint32_t>> seen;
      what.hook = [&](WitnessCache* made) { witness = made; };
      what.judge = [&](const Retained& retained) {
        std::vector<uint32_t> prefix;
        for (uint32_t p = 0; p < retained.tokens; ++p) prefix.push_back(witness->token(retained.request, p));
        const auto [at, fresh] = seen.try_emplace({prefix, retained.head}, retained.after);
        if (fresh) return;
        CHECK(at->second == retained.after);
        ++compared;
      };
      run_of(what);
      CHECK(compared > 0);
    }
  }
}

namespace {

constexpr RequestId kOne{1};

// Runs one request by hand: `prompt` tokens in one step; where `keep` is not empty, passes of probe tokens in
// a step each, and a compression with the last; then the rest as one more chunk, or token by token with a
// sample each.
void drive(cpu::CpuEngine* engine, const CoreConfig& config, uint32_t prompt, uint32_t tokens,
           const std::vector<uint32_t>& keep, bool samples = false) {
  std::vector<PageAllocation> allocations;
  const auto allocation = [&](uint32_t end) {
    const auto before = static_cast<uint32_t>(allocations.size());
    std::vector<PageAllocation> more;
    for (uint32_t page = before; page < div_ceil(end, config.page_tokens); ++page)
      more.push_back({0, 0, PageId{page}});
    allocations.insert(allocations.end(), more.begin(), more.end());
    return more;
  };
  DataOutcomes values;
  const PlanEntry first[] = {{kOne, EntryKind::kChunk, true, true, prompt, 0}};
  const Compression::Forced forced[] = {{0, 2}, {prompt - 4, prompt}};
  const Compression compression[] = {{.entry = 0, .begin = 0, .end = prompt, .forced = forced, .keep = keep}};
  const std::vector<PageAllocation> pages = allocation(prompt);
  engine->step({.entries = first, .allocations = pages, .prefix_hits = {}}, 0, &values);
  const ProbePasses passes = probe_passes(config.policies);
  const uint32_t count = keep.empty() ? 0 : passes.count(prompt);
  for (uint32_t i = 0; i < count; ++i) {
    const ProbePass pass = passes.at(prompt, i);
    const PlanEntry entry[] = {{kOne, EntryKind::kProbe, false, false, passes.tokens(pass), prompt}};
    engine->step({.step = StepId{1 + i},
                  .entries = entry,
                  .allocations = {},
                  .prefix_hits = {},
                  .compressions = std::span(compression).first(i + 1 == count ? 1 : 0),
                  .passes = {&pass, 1}},
                 0, &values);
  }
  for (uint32_t at = prompt, more = 0; at < tokens; at += more) {
    more = samples ? 1 : tokens - at;
    const PlanEntry entry[] = {{kOne, EntryKind::kChunk, false, samples, more, at}};
    const std::vector<PageAllocation> next = allocation(at + more);
    engine->step(
        {.step = StepId{1 + count + at - prompt}, .entries = entry, .allocations = next, .prefix_hits = {}},
        0, &values);
  }
}

}  // namespace

TEST_CASE("retained: KVzip retains the entries that repeating the context attends to") {
  for (const LlmSpec& llm : gqa_and_mha()) {
    constexpr uint32_t kPrompt = 30, kInstruction = 4, kKeep = 8, kSinks = 2;
    CoreConfig config = config_of({"kvzip", "uniform", "compact"}, llm);
    config.policies.scorer_spec.repeat_tokens = 64;
    config.step_tokens_max = 128;
    const ModelWeights weights = ModelWeights::random(llm, 3);
    // The context repeated after itself, as KVzip runs it.
    std::vector<uint32_t> ids = random_tokens(8, kPrompt, llm.vocab);
    for (uint32_t i = 0; i < kInstruction; ++i)
      ids.push_back(static_cast<uint32_t>(draw({9, 0x6b767a6970, i}) % llm.vocab));
    for (uint32_t p = kSinks; p < kPrompt; ++p) ids.push_back(ids[p]);
    GivenTokens tokens;
    tokens.give(kOne, ids, kPrompt);
    const auto engine_of = [&](WitnessCache** witness) {
      auto made = cpu::CompressedCache::make({.core = config, .score = score_of(config), .seed = 9},
                                             {.page_tokens = 4, .pages_gpu = 40, .poison = true}, &weights);
      REQUIRE(made);
      auto cache = std::make_unique<WitnessCache>(std::move(*made), llm, config);
      *witness = cache.get();
      return std::make_unique<cpu::CpuEngine>(cpu::CpuEngineConfig{}, &weights, &tokens, std::move(cache));
    };
    WitnessCache* repeated = nullptr;
    const auto behind = engine_of(&repeated);
    std::map<uint32_t, std::map<uint32_t, double>> most;  // by KV head of all layers, position
    const uint32_t group = llm.query_heads / llm.kv_heads;
    repeated->row_seen = [&](const RowSeen& row) {
      if (row.position < kPrompt) return;
      double sum = 0;  // over sinks, context and the repeated tokens' own keys: all, here
      for (const double w : row.weights) sum += w;
      for (size_t c = 0; c < row.reads.size(); ++c) {
        double& score = most[row.layer * llm.kv_heads + row.query_head / group][row.reads[c]];
        score = std::max(score, row.weights[c] / sum);
      }
    };
    drive(behind.get(), config, kPrompt, static_cast<uint32_t>(ids.size()), {});

    WitnessCache* witness = nullptr;
    const auto engine = engine_of(&witness);
    uint32_t heads = 0;
    witness->judge = [&](const Retained& retained) {
      CHECK(retained.after == chosen(retained, kKeep, [&](uint32_t p) { return most[retained.head][p]; }));
      ++heads;
    };
    drive(engine.get(), config, kPrompt, kPrompt, {kKeep});
    CHECK(heads == llm.layers * llm.kv_heads);
    CHECK(witness->dropped() == uint64_t{heads} * (kPrompt - kKeep - 6));
    CHECK(witness->worst() < 2e-5);
  }
}

TEST_CASE("J-2 probes: with a budget of the whole prompt, Judge Q does not change the generated tokens") {
  for (const LlmSpec& llm : gqa_and_mha()) {
    constexpr uint32_t kPrompt = 30, kTokens = 41, kForced = 6;
    CoreConfig config = config_of({"judge_q", "uniform", "compact"}, llm);
    config.step_tokens_max = 64;
    const ModelWeights weights = ModelWeights::random(llm, 3);
    GivenTokens tokens;
    tokens.give(kOne, random_tokens(8, kTokens + 1, llm.vocab), kPrompt);
    uint32_t judged = 0;
    const auto logits = [&](const std::vector<uint32_t>& keep) {
      auto made = cpu::CompressedCache::make({.core = config, .score = score_of(config), .seed = 9},
                                             {.page_tokens = 4, .pages_gpu = 40, .poison = true}, &weights);
      REQUIRE(made);
      auto cache = std::make_unique<WitnessCache>(std::move(*made), llm, config);
      WitnessCache* const witness = cache.get();
      witness->judge = [&](const Retained& retained) { judged += retained.before.size() == kPrompt ? 1 : 0; };
      cpu::CpuEngine engine({}, &weights, &tokens, std::move(cache));
      drive(&engine, config, kPrompt, kTokens, keep, true);
      const uint64_t dropped =
          uint64_t{llm.layers} * llm.kv_heads * (keep.empty() ? 0 : kPrompt - kForced - keep[0]);
      CHECK(witness->dropped() == dropped);
      return std::vector<float>(engine.logits().begin(), engine.logits().end());
    };
    const std::vector<float> unjudged = logits({});
    REQUIRE(unjudged.size() == llm.vocab);
    CHECK(judged == 0);
    CHECK(bits_of(logits({kPrompt - kForced})) == bits_of(unjudged));
    CHECK(judged == llm.layers * llm.kv_heads);  // probe tokens ran
    CHECK(bits_of(logits({8})) != bits_of(unjudged));
  }
}
