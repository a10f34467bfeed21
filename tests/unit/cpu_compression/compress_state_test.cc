// The state that KV entries carry through every move: gates computed with the entry, and stamps of the last
// time an entry mattered.

#include "tests/unit/cpu_compression/compress_run.h"

using namespace kvtwin;
using namespace kvtwin::testing;

namespace {

using Retained = WitnessCache::Retained;
using KvEntry = std::tuple<uint32_t, uint32_t, uint32_t>;  // request, head, position

// No dropped candidate ranks above a retained one; of equal ones the later is retained.
void check_best_and_later_stay(const Retained& retained, const std::function<double(uint32_t)>& score) {
  std::pair<double, uint32_t> worst_retained{INFINITY, 0}, best_dropped{-INFINITY, 0};
  for (const uint32_t p : retained.before) {
    const auto& forced = retained.compression->forced;
    const bool stays = p < retained.compression->begin ||
                       std::any_of(forced.begin(), forced.end(),
                                   [&](const Compression::Forced& f) { return p >= f.begin && p < f.end; });
    if (stays) continue;
    const std::pair<double, uint32_t> mine{score(p), p};
    if (std::binary_search(retained.after.begin(), retained.after.end(), p)) {
      worst_retained = std::min(worst_retained, mine);
    } else {
      best_dropped = std::max(best_dropped, mine);
    }
  }
  CAPTURE(retained.head);
  CHECK(worst_retained >= best_dropped);
}

RunOf state_run(const Method& method, const LlmSpec& llm) {
  RunOf out{.llm = llm, .config = config_of(method, llm), .seed = 8};
  out.client = {.sessions = 3, .requests_per_session = 2, .prompt_tokens_max = 60, .output_tokens_max = 20};
  return out;
}

}  // namespace

TEST_CASE("retained: a gate's score depends on its token alone, and stays with the moving KV entry") {
  const Method methods[] = {
      {"fastkvzip", "ratio", "ragged", 1},
      {"fastkvzip", "released", "ragged", 2},
      {"fastkvzip", "uniform", "compact", 0, Clustering::kAdjacent, CompressionTrigger::kDecodeStep},
      {"trimkv", "uniform", "compact", 0, Clustering::kAdjacent, CompressionTrigger::kDecodeStep},
      {"trimkv", "uniform", "ragged", 1, Clustering::kAdjacent, CompressionTrigger::kDecodeStep}};
  for (const Method& method : methods) {
    const std::string name = std::string(method.scorer) + " " + method.budget + " " + method.layout;
    CAPTURE(name);
    for (const LlmSpec& llm : gqa_and_mha()) {
      const bool fast = std::string(method.scorer) == "fastkvzip";
      const cpu::ScorerWeights weights =
          cpu::ScorerWeights::drawn(*kernels::find_scorer(fast ? "fastkvzip" : "trimkv"), llm, 0, 9);
      std::map<KvEntry, float> gates;
      RunOf what = state_run(method, llm);
      what.hook = [&](WitnessCache* witness) {
        witness->hidden_seen = [&](RequestId request, uint32_t layer, uint32_t position, const float* x) {
          std::vector<float> out(llm.kv_heads);
          const kernels::HeadsView row{x, 1, 1, llm.hidden, 0, llm.hidden, {}};
          const kernels::ScoreView view = kernels::packed_scores(out, llm.kv_heads, 1);
          if (fast) kernels::score_fastkvzip(weights.fastkvzip[layer].gate(), row, view);
          if (!fast) kernels::trimkv_log_beta(weights.trimkv[layer].gate(), row, view);
          for (uint32_t h = 0; h < llm.kv_heads; ++h)
            gates[{raw(request), layer * llm.kv_heads + h, position}] = out[h];
        };
      };
      uint32_t judged = 0;
      what.judge = [&](const Retained& retained) {
        ++judged;
        check_best_and_later_stay(retained, [&](uint32_t p) {
          const float gate = gates.at({raw(retained.request), retained.head, p});
          // t = tokens seen + 1 (docs/design/methods/uniform.md#trimkv), in fp32 like the kernel.
          const float age = static_cast<float>(int64_t{retained.tokens} + 1 - int64_t{p});
          return static_cast<double>(fast ? gate : age * gate);
        });
      };
      CHECK(run_of(what).dropped > 0);
      CHECK(judged > 20);
    }
  }
}

TEST_CASE("retained: RaaS drops the entries that were selected longest ago") {
  for (const char* layout : {"compact", "ragged"}) {
    for (const LlmSpec& llm : gqa_and_mha()) {
      const uint32_t group = llm.query_heads / llm.kv_heads;
      std::map<KvEntry, uint32_t> stamps;
      std::map<RequestId, uint32_t> prompts;
      // The positions that the newest query selects, by request and head.
      std::map<std::pair<uint32_t, uint32_t>, std::vector<uint32_t>> pointed_at;
      std::map<uint32_t, double> attention;  // of the current query, by position
      RunOf what = state_run({"raas", "uniform", layout, 1}, llm);
      what.scorer = [](kernels::ScoreSpec* spec) { spec->raas.alpha = 0.05f; };  // of about twenty KV entries
      const auto stamp_all = [&](RequestId request, uint32_t head, uint32_t now) {
        for (const uint32_t p : pointed_at[{raw(request), head}]) stamps[{raw(request), head, p}] = now;
      };
      what.hook = [&](WitnessCache* witness) {
        // Of a prompt's queries only the last one selects.
        witness->prompt_ended = [&](RequestId request, uint32_t tokens) {
          prompts[request] = tokens;
          for (uint32_t head = 0; head < llm.layers * llm.kv_heads; ++head) stamp_all(request, head, tokens);
        };
        witness->row_seen = [&](const WitnessCache::RowSeen& row) {
          const uint32_t head = row.layer * llm.kv_heads + row.query_head / group, g = row.query_head % group;
          stamps[{raw(row.request), head, row.position}] = row.position + 1;
          if (g == 0) attention.clear();
          // The released code does not divide by sqrt(d): its softmax is that of the weights to this power.
          double sum = 0;
          std::vector<double> power;
          for (const double w : row.weights)
            sum += power.emplace_back(std::pow(w, std::sqrt(static_cast<double>(llm.head_dim))));
          for (size_t c = 0; c < power.size(); ++c) attention[row.reads[c]] += power[c] / sum / group;
          if (g + 1 < group) return;
          std::vector<uint32_t>& points = pointed_at[{raw(row.request), head}];
          points.clear();
          for (const auto& [p, a] : attention) {
            if (a > 0.05) points.push_back(p);
          }
          if (prompts.contains(row.request)) stamp_all(row.request, head, row.position + 1);
        };
      };
      uint32_t judged = 0, pointed = 0;
      what.judge = [&](const Retained& retained) {
        if (prompts.at(retained.request) == retained.tokens)
          return;  // at a prompt's end another rule applies
        ++judged;
        check_best_and_later_stay(retained, [&](uint32_t p) {
          const uint32_t stamp = stamps.at({raw(retained.request), retained.head, p});
          pointed += stamp > p + 1;
          return static_cast<double>(stamp);
        });
      };
      CHECK(run_of(what).dropped > 0);
      CHECK(judged > 5);
      CHECK(pointed > 5);
    }
  }
}
