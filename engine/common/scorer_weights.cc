#include "engine/common/scorer_weights.h"

#include <fmt/format.h>

#include <cmath>

#include "engine/base/prng.h"
#include "models/weights/safetensors.h"

namespace kvtwin::cpu {

using kernels::TrainedWeights;

namespace {

constexpr uint32_t kTrimWidth = 64;  // width of TrimKV's hidden layer, for drawn weights

// Reads tensors one by one and remembers the first error.
class Reader {
 public:
  explicit Reader(const Checkpoint* from) : from_(*from) {}

  void read(const std::string& name, std::vector<float>* to) { read(name, to->size(), to); }
  // `count` values; SIZE_MAX: any number.
  void read(const std::string& name, size_t count, std::vector<float>* to) {
    if (!problem_.what.empty()) return;
    const TensorView* const found = from_.find(name);
    if (found == nullptr) {
      problem_ = {from_.path(), fmt::format("has no tensor \"{}\"", name),
                  "the scorer's weights, as engine/common/scorer_weights.h names them"};
      return;
    }
    const bool floats = found->type == TensorType::kF32 || found->type == TensorType::kF16 ||
                        found->type == TensorType::kBf16;
    if (!floats || (count != SIZE_MAX && found->elements() != count)) {
      problem_ = {from_.path(),
                  fmt::format("tensor \"{}\" has {} values of type {}", name, found->elements(),
                              name_of(found->type)),
                  fmt::format("{} floats, for this model", count)};
      return;
    }
    *to = read_floats(*found);
    for (const float value : *to) {
      if (!std::isfinite(value) && problem_.what.empty())
        problem_ = {from_.path(), fmt::format("tensor \"{}\" has values that are no numbers", name), ""};
    }
  }
  const Error& problem() const { return problem_; }

 private:
  const Checkpoint& from_;
  Error problem_;
};

void read_layers(Reader* reader, ScorerWeights* out) {
  for (size_t l = 0; l < out->fastkvzip.size(); ++l) {
    kernels::FastKvzipWeights& gate = out->fastkvzip[l];
    const std::string at = fmt::format("layers.{}.gate.", l);
    reader->read(at + "wq", &gate.wq), reader->read(at + "bq", &gate.bq);
    reader->read(at + "q_norm", &gate.q_norm), reader->read(at + "wk", &gate.wk);
    reader->read(at + "k_norm", &gate.k_norm), reader->read(at + "k_base", &gate.k_base);
    reader->read(at + "bias", &gate.bias);
  }
  for (size_t l = 0; l < out->trimkv.size(); ++l) {
    kernels::TrimKvWeights& gate = out->trimkv[l];
    const std::string at = fmt::format("layers.{}.gate.", l);
    reader->read(at + "b1", SIZE_MAX, &gate.b1);
    gate.width = static_cast<uint32_t>(gate.b1.size());
    reader->read(at + "w1", size_t{gate.width} * gate.hidden, &gate.w1);
    reader->read(at + "w2", size_t{gate.heads} * gate.width, &gate.w2);
    reader->read(at + "b2", &gate.b2);
  }
}

void read_residual(Reader* reader, kernels::IntentResidual* to) {
  std::vector<float> one(1);
  reader->read("residual.wq", &to->wq), reader->read("residual.bq", &to->bq);
  reader->read("residual.wk", &to->wk), reader->read("residual.bk", &to->bk);
  reader->read("residual.wv", &to->wv), reader->read("residual.bv", &to->bv);
  reader->read("residual.wo", &to->wo), reader->read("residual.bo", &to->bo);
  reader->read("residual.b1", SIZE_MAX, &to->b1);
  to->hidden = static_cast<uint32_t>(to->b1.size());
  reader->read("residual.w1", size_t{to->hidden} * 4 * to->dim, &to->w1);
  reader->read("residual.w2", to->hidden, &to->w2);
  reader->read("residual.b2", &one);
  to->b2 = one[0];
  reader->read("residual.gain", &one);
  to->gain = one[0];
}

}  // namespace

ScorerWeights ScorerWeights::drawn(const kernels::ScorerDefinition& scorer, const LlmSpec& llm,
                                   uint32_t probe_tokens, uint64_t seed) {
  ScorerWeights out;
  const uint32_t group = llm.query_heads / llm.kv_heads;
  for (uint32_t l = 0; l < llm.layers; ++l) {
    const uint64_t own = draw({seed, l});
    if (scorer.weights == TrainedWeights::kHeadGates)
      out.fastkvzip.push_back(kernels::seeded_fastkvzip(llm.kv_heads, group, llm.hidden, own));
    if (scorer.weights == TrainedWeights::kDecayGates)
      out.trimkv.push_back(kernels::seeded_trimkv(llm.kv_heads, llm.hidden, kTrimWidth, own));
  }
  if (scorer.weights == TrainedWeights::kSoftTokens)
    out.soft_tokens = kernels::seeded_soft_tokens(probe_tokens, llm.hidden, seed);
  if (scorer.weights == TrainedWeights::kResidual)
    out.residual = kernels::make_intent_residual(llm.head_dim, seed);
  return out;
}

Result<ScorerWeights> ScorerWeights::load(const kernels::ScorerDefinition& scorer, const LlmSpec& llm,
                                          uint32_t probe_tokens, const std::string& path) {
  Result<Checkpoint> file = Checkpoint::open(path);
  if (!file) return tl::unexpected<Error>(file.error());
  ScorerWeights out = drawn(scorer, llm, probe_tokens, 0);  // to set the shapes
  Reader reader(&*file);
  read_layers(&reader, &out);
  if (scorer.weights == TrainedWeights::kSoftTokens) reader.read("soft_tokens", &out.soft_tokens);
  if (scorer.weights == TrainedWeights::kResidual) read_residual(&reader, &out.residual);
  if (!reader.problem().what.empty()) return tl::unexpected<Error>(reader.problem());
  return out;
}

}  // namespace kvtwin::cpu
