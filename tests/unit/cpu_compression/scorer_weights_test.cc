// Trained scorer weights loaded from a file.

#include "engine/common/scorer_weights.h"

#include "engine/methods/scorer_spec.h"
#include "models/weights/safetensors.h"
#include "tests/support/folder.h"
#include "tests/unit/cpu_compression/compress_run.h"

using namespace kvtwin;
using namespace kvtwin::testing;

namespace {

using cpu::ScorerWeights;
using kernels::TrainedWeights;

// Tensors with random contents, to be written to a file.
class File {
 public:
  void add(const std::string& name, size_t count, float size = 0.3f) {
    add(name, random_floats(values_.size() + 77, count, size));
  }
  void add(const std::string& name, std::vector<float> values) {
    const size_t count = values.size();
    values_.push_back(std::move(values));
    const std::vector<float>& made = values_.back();
    tensors_.push_back({name, {TensorType::kF32, {count}, std::as_bytes(std::span(made))}});
  }
  std::string write(const Folder& folder) const {
    const std::string path = folder.file("scorer.safetensors");
    REQUIRE(write_safetensors(path, tensors_));
    return path;
  }

 private:
  std::deque<std::vector<float>> values_;
  std::vector<NamedTensor> tensors_;
};

File file_for(TrainedWeights weights, const LlmSpec& llm, uint32_t rows) {
  File out;
  const size_t d = llm.head_dim, hidden = llm.hidden;
  if (weights == TrainedWeights::kSoftTokens) out.add("soft_tokens", rows * hidden);
  for (uint32_t l = 0; l < llm.layers && weights == TrainedWeights::kHeadGates; ++l) {
    const std::string at = "layers." + std::to_string(l) + ".gate.";
    out.add(at + "wq", llm.query_heads * 16 * hidden), out.add(at + "bq", llm.query_heads * 16);
    out.add(at + "q_norm", 16), out.add(at + "wk", llm.kv_heads * 16 * hidden), out.add(at + "k_norm", 16);
    out.add(at + "k_base", llm.kv_heads * 256), out.add(at + "bias", llm.query_heads);
  }
  for (uint32_t l = 0; l < llm.layers && weights == TrainedWeights::kDecayGates; ++l) {
    const std::string at = "layers." + std::to_string(l) + ".gate.";
    out.add(at + "w1", 6 * hidden), out.add(at + "b1", 6);
    out.add(at + "w2", llm.kv_heads * size_t{6}), out.add(at + "b2", llm.kv_heads);
  }
  if (weights != TrainedWeights::kResidual) return out;
  out.add("residual.wq", 3 * d * d), out.add("residual.bq", d);
  for (const char* name : {"k", "v", "o"}) {
    out.add(std::string("residual.w") + name, d * d), out.add(std::string("residual.b") + name, d);
  }
  out.add("residual.w1", 10 * 4 * d), out.add("residual.b1", 10), out.add("residual.w2", 10, 3.0f);
  out.add("residual.b2", 1), out.add("residual.gain", std::vector<float>{1.0f});
  return out;
}

const Method kWeightedMethods[] = {
    {"judge_q", "uniform", "compact"},
    {"fastkvzip", "ratio", "ragged", 1},
    {"trimkv", "uniform", "compact", 0, Clustering::kAdjacent, CompressionTrigger::kDecodeStep},
    {"intent_residual", "uniform", "page_mask"}};

}  // namespace

TEST_CASE("scorer weights: a file's weights are used, and change the retained entries") {
  const LlmSpec llm = tiny_models()[2];
  for (const Method& method : kWeightedMethods) {
    const std::string name = method.scorer;
    CAPTURE(name);
    const kernels::ScorerDefinition& scorer = *kernels::find_scorer(method.scorer);
    CHECK(scorer.weights != TrainedWeights::kNone);
    const Folder folder;
    const Result<ScorerWeights> loaded =
        ScorerWeights::load(scorer, llm, 5, file_for(scorer.weights, llm, 5).write(folder));
    REQUIRE_MESSAGE(loaded.has_value(), (loaded ? "" : loaded.error().text()));
    RunOf what{.llm = llm, .config = config_of(method, llm), .seed = 6};
    what.client = {
        .sessions = 3, .requests_per_session = 2, .prompt_tokens_max = 60, .output_tokens_max = 16};
    const RunResult drawn = run_of(what);
    what.weights = *loaded;
    const RunResult trained = run_of(what);
    CHECK(trained.dropped > 0);
    CHECK(trained.worst < 2e-5);
    CHECK(trained.logits != drawn.logits);
  }
}

TEST_CASE("scorer weights: a file without them, or for another model, is refused with the reason") {
  const LlmSpec llm = tiny_models()[2], other = tiny_models()[1];
  for (const Method& method : kWeightedMethods) {
    const std::string name = method.scorer;
    CAPTURE(name);
    const kernels::ScorerDefinition& scorer = *kernels::find_scorer(method.scorer);
    const Folder folder;
    const std::string path = file_for(scorer.weights, other, 7).write(folder);
    const Result<ScorerWeights> problem = ScorerWeights::load(scorer, llm, 5, path);
    if (scorer.weights !=
        TrainedWeights::kResidual) {  // which depends on the head size alone, and that is equal
      REQUIRE(!problem.has_value());
      CHECK_MESSAGE(problem.error().text().find(" values of type F32; ") != std::string::npos,
                    problem.error().text());
    }
    const std::string empty = File().write(folder);
    const Result<ScorerWeights> none = ScorerWeights::load(scorer, llm, 5, empty);
    REQUIRE(!none.has_value());
    CHECK(none.error().text().find("has no tensor \"") != std::string::npos);
    CHECK(!ScorerWeights::load(scorer, llm, 5, folder.file("absent")).has_value());
  }
  CHECK(kernels::find_scorer("snapkv")->weights == TrainedWeights::kNone);
}
