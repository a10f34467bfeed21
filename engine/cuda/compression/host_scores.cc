#include "engine/cuda/compression/host_scores.h"

#include "engine/base/check.h"

namespace kvtwin::cuda {

void HostScores::score(SessionId session, TokenRange query, std::span<cpu::RankedHead> heads, uint32_t tokens,
                       const cpu::StepRows& rows, std::span<const uint32_t> expected,
                       const std::vector<cpu::Queries>& queries, uint32_t stride, const Fetch& fetch) {
  const LlmSpec& llm = model_.llm();
  // Only the ranked rows, staged in the layout that the definitions expect.
  Result<cpu::KvEntryStore> made =
      cpu::KvEntryStore::make({shape_.tables.page_tokens, 0}, llm, &shape_, stride);
  KVT_CHECK(made.has_value());
  cpu::KvEntryStore store = std::move(*made);
  cpu::KvEntryScorer scorer(config_, &model_, &weights_, &store);
  cpu::KvEntryScorer::State state;
  scorer.begin(&state);
  state.queries = queries;
  for (uint32_t l = 0; l < llm.layers; ++l) {
    const std::span<cpu::RankedHead> of_layer = heads.subspan(size_t{l} * llm.kv_heads, llm.kv_heads);
    const float *keys = nullptr, *values = nullptr;
    fetch(l, &keys, &values);
    for (uint32_t h = 0; h < llm.kv_heads; ++h) {
      cpu::RankedHead& head = of_layer[h];
      for (uint32_t row = 0; row < head.rows(); ++row) {
        head.places.push_back(store.staged(head.head, row));
        const uint64_t at = (uint64_t{h} * stride + row) * llm.head_dim;
        store.write(head.head, head.places.back(), keys + at, values + at);
      }
    }
    if (intents_ == nullptr) scorer.score(l, of_layer, tokens, rows, expected[l], state);
  }
  if (intents_ != nullptr) intents_->score(session, query, heads, store);
}

}  // namespace kvtwin::cuda
