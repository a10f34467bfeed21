// What one layer of a FactoredCache starts.

#include <fmt/format.h>

#include <cmath>

#include "engine/base/check.h"
#include "engine/common/retrieval/head_choice.h"
#include "engine/common/retrieval/page_pooling.h"
#include "engine/cuda/cuda_forward.h"
#include "engine/cuda/device/cuda_check.h"
#include "engine/cuda/page_choosing.h"
#include "engine/cuda/retrieval/factored_cache.h"
#include "kernels/select/recall_tokens.h"

namespace kvtwin::cuda {
// What follows on recall_ is behind what `stream` has.
void FactoredCache::fork(cudaStream_t stream) {
  must(cudaEventRecord(forked_, stream), "cudaEventRecord");
  must(cudaStreamWaitEvent(recall_, forked_), "cudaStreamWaitEvent");
}

// The recall of a layer has been started.
void FactoredCache::recalling(uint32_t layer) {
  must(cudaEventRecord(recalled_[layer % 2], recall_), "cudaEventRecord");
}

void FactoredCache::join(uint32_t layer, cudaStream_t stream) {
  must(cudaStreamWaitEvent(stream, recalled_[layer % 2]), "cudaStreamWaitEvent");
}

// Pages that this step has filled: to their homes, and summarised.
void FactoredCache::seal(uint32_t layer, const StepStream& on) {
  const uint64_t bytes = pages_.part_bytes(), numbers = bytes / sizeof(__nv_bfloat16);
  for (const Row& row : rows_) {
    if ((row.position + 1) % memory_.page_tokens != 0) continue;
    const uint32_t owner = row.request->host_copies.at(row.position / memory_.page_tokens);
    must(cudaMemcpyAsync(const_cast<__nv_bfloat16*>(host_copy_block(layer, owner, 0)),
                         pages_.layer(layer) + row.page * numbers, bytes, cudaMemcpyDeviceToHost, on.stream),
         "copy of a page to the host", bytes,
         [&] { return fmt::format("page {}, layer {}", row.page, layer); });
  }
  if (at_.summaries.count == 0) return;
  on.timer->begin(Operation::kSummarise, layer);
  SummaryArgs args;
  args.pool = pages_.layer(layer), args.pages = upload_.at(at_.summaries);
  args.out = choices_.summaries(chooser(layer)), args.count = at_.summaries.count;
  args.page_tokens = memory_.page_tokens, args.head_dim = llm_.head_dim, args.kind = kind_of(spec_.summary);
  must(summarise_pages(args, on.stream), "summarise_pages");
}

// ShadowKV: values of chosen pages come from their homes, keys of all that are read are rebuilt: directions
// may be newer than when a page came.
void FactoredCache::choose_pages(uint32_t layer, const LayerRows& tensors, const StepStream& on) {
  ChoiceArgs args = choices_.args(chooser(layer), ChoosesFor::kThisStep);
  args.rows = upload_.at(at_.choices), args.count = at_.choices.count;
  args.lists = upload_.at(at_.lists), args.q = tensors.q;
  args.tables = choices_.spare_tables();  // attention reads all slots
  args.stays = stays_.layer<uint32_t>(chooser(layer)), args.stay = shape_.extra;
  const auto shape = [&] { return fmt::format("{} rows, layer {}", args.count, layer); };
  on.timer->begin(Operation::kPageScore, layer);
  must(cudaMemsetAsync(args.counts, 0, sizeof(ChoiceCounts), on.stream), "counts of choices");
  must(score_pages(choices_.shape(), args, on.stream), "score_pages", 0, shape);
  on.timer->begin(Operation::kChoose, layer);
  must(kvtwin::choose_pages(choices_.shape(), args, on.stream), "choose_pages", 0, shape);
  on.timer->begin(Operation::kRecall, layer);
  fork(on.stream);
  RecallArgs recall{host_layer(layer), pages_.layer(layer), args.before, &args.counts->before, kRecallCtas};
  recall.values_only = true;
  must(recall_pages(recall, recall_), "recall_pages", 0, shape);
  recalling(layer);
  rebuild(layer, on.stream);
  join(layer, on.stream);
}

void FactoredCache::rebuild(uint32_t layer, cudaStream_t stream) {
  RebuildArgs args;
  args.rows = upload_.at(at_.rebuilt), args.count = at_.rebuilt.count, args.lists = upload_.at(at_.lists);
  args.held = choices_.args(chooser(layer), ChoosesFor::kThisStep).held;
  args.coordinates = factor_pages_.layer<__nv_bfloat16>(chooser(layer));
  args.directions = directions_.layer<__nv_bfloat16>(chooser(layer));
  args.inv_freq = inv_freq_.as<float>(), args.rope_scale = rope_.scale;
  args.pool = pages_.layer(layer);
  args.rank = rank_, args.chosen = shape_.selectable, args.kv_heads = llm_.kv_heads;
  args.page_tokens = memory_.page_tokens, args.head_dim = llm_.head_dim;
  must(rebuild_keys(args, stream), "rebuild_keys", 0,
       [&] { return fmt::format("{} rows, rank {}, layer {}", args.count, rank_, layer); });
}

// Partial keys of the step's rows, which are rotated already.
void FactoredCache::project_keys(uint32_t layer, cudaStream_t stream) {
  ProjectArgs args;
  args.rows = upload_.at(at_.keys), args.count = at_.keys.count;
  args.x = keys_.as<__nv_bfloat16>(), args.directions = directions_.layer<float>(chooser(layer));
  args.out = factor_pages_.layer<float>(chooser(layer));
  args.heads = args.kv_heads = llm_.kv_heads;
  args.head_dim = llm_.head_dim, args.columns = columns_;
  must(project_rows(args, stream), "project_rows", 0,
       [&] { return fmt::format("{} keys, layer {}", args.count, layer); });
}

// Partial queries that `layer` would have if its input were that of the layer before.
void FactoredCache::project_queries(uint32_t layer, const LayerRows& tensors, const DeviceRows& rows,
                                    cudaStream_t stream) {
  const DeviceLayer& weights = forward_->weights().layer(layer);
  Matrix matrix = weights.qkv;  // queries come first
  matrix.out = q_width();
  forward_->matmul()->run(matrix, tensors.hidden, rows.padded_rows, Matmul::Into::kBf16, queries_.as<void>(),
                          stream);
  ProjectArgs args;
  args.rows = upload_.at(at_.queries), args.count = at_.queries.count;
  args.x = queries_.as<__nv_bfloat16>(), args.directions = directions_.layer<float>(chooser(layer));
  args.out = partial_queries_.as<float>();
  args.heads = llm_.query_heads, args.kv_heads = llm_.kv_heads;
  args.head_dim = llm_.head_dim, args.columns = columns_;
  args.norm = weights.q_norm, args.norm_eps = static_cast<float>(llm_.norm_eps);
  args.inv_freq = inv_freq_.as<float>(), args.rope_scale = rope_.scale;
  must(project_rows(args, stream), "project_rows", 0,
       [&] { return fmt::format("{} queries, layer {}", args.count, layer); });
}

TokenChoiceArgs FactoredCache::token_args(uint32_t layer) const {
  const uint64_t rows = at_.tokens.count;
  TokenChoiceArgs args;
  args.rows = upload_.at(at_.tokens), args.count = at_.tokens.count, args.lists = upload_.at(at_.lists);
  args.queries = partial_queries_.as<float>(), args.partial = factor_pages_.layer<float>(chooser(layer));
  args.scores = token_scores_.as<float>(), args.near = near_.as<uint32_t>();
  args.kv_heads = llm_.kv_heads, args.group = llm_.query_heads / llm_.kv_heads, args.columns = columns_;
  args.page_tokens = memory_.page_tokens, args.most = shape_.selectable * memory_.page_tokens;
  args.chosen = chosen_.as<uint32_t>() + layer % 2 * rows * llm_.kv_heads * args.most;
  args.numbers = numbers_.as<uint32_t>() + chooser(layer) * rows;
  args.reads = const_cast<QueryRow*>(upload_.at(at_.reads[layer % 2]));  // rewritten for each layer
  args.score_stride = token_stride_, args.pooling = cpu::pooling_of(spec_.pooling);
  args.scale = 1 / std::sqrt(static_cast<float>(llm_.head_dim)), args.margin = cpu::kNearTop;
  return args;
}

// InfiniGen: for `layer`, from the input of the layer before; one by one into the slots between sinks and
// window.
void FactoredCache::choose_tokens(uint32_t layer, const LayerRows& tensors, const DeviceRows& rows,
                                  const StepStream& on) {
  const TokenChoiceArgs args = token_args(layer);
  const auto shape = [&] { return fmt::format("{} rows, layer {}", args.count, layer); };
  on.timer->begin(Operation::kPageScore, layer);
  project_queries(layer, tensors, rows, on.stream);
  must(cudaMemsetAsync(args.near, 0, args.count * sizeof *args.near, on.stream), "numbers of tokens");
  must(score_tokens(args, on.stream), "score_tokens", 0, shape);
  on.timer->begin(Operation::kChoose, layer);
  must(kvtwin::choose_tokens(args, on.stream), "choose_tokens", 0, shape);
  if (selected_tokens_) show_tokens(layer, args, on.stream);
  fork(on.stream);
  const RecallTokensArgs recall{host_layer(layer), pages_.layer(layer), args, memory_.pages_gpu,
                                memory_.poison};
  must(recall_tokens(recall, recall_), "recall_tokens", 0, shape);
  recalling(layer);
}

void FactoredCache::show_tokens(uint32_t layer, const TokenChoiceArgs& args, cudaStream_t stream) const {
  std::vector<uint32_t> numbers(args.count), chosen(uint64_t{args.count} * llm_.kv_heads * args.most);
  must(cudaMemcpyAsync(numbers.data(), args.numbers, numbers.size() * sizeof(uint32_t),
                       cudaMemcpyDeviceToHost, stream),
       "copy of numbers of tokens");
  must(cudaMemcpyAsync(chosen.data(), args.chosen, chosen.size() * sizeof(uint32_t), cudaMemcpyDeviceToHost,
                       stream),
       "copy of chosen tokens");
  must(cudaStreamSynchronize(stream), "copy of chosen tokens");
  for (uint32_t i = 0; i < args.count; ++i) {
    const Row& row = rows_[query_rows_[i].row];
    for (uint32_t head = 0; head < llm_.kv_heads; ++head) {
      const auto first = chosen.begin() + static_cast<ptrdiff_t>((i * llm_.kv_heads + head) * args.most);
      std::vector<uint32_t> tokens(first, first + numbers[i]);
      for (uint32_t& token : tokens) token += token_rows_[i].first;
      selected_tokens_({row.id, layer, head, row.position}, tokens);
    }
  }
}

// Sinks, tokens and window as a list of KV entries, because the entries that a head reads end inside pages.
void FactoredCache::attend_tokens(uint32_t layer, const LayerRows& tensors, const StepStream& on) {
  join(layer, on.stream);
  on.timer->begin(Operation::kRowAttention, layer);
  const ListAt<QueryRow>& reads = at_.reads[layer % 2];
  AttentionRowsArgs args;
  args.pool = pages_.layer(layer), args.pages = upload_.at(at_.kv_entries), args.list = upload_.at(reads);
  args.q = tensors.q, args.out = tensors.out;
  args.scale = 1 / std::sqrt(static_cast<float>(llm_.head_dim));
  args.rows = reads.count, args.query_heads = llm_.query_heads, args.kv_heads = llm_.kv_heads;
  args.head_dim = llm_.head_dim, args.page_tokens = memory_.page_tokens, args.heads_per_page = llm_.kv_heads;
  args.by_head = args.listed = true;
  must(attention_rows(args, on.stream), "attention_rows", 0,
       [&] { return fmt::format("{} rows and heads, layer {}", args.rows, layer); });
}

}  // namespace kvtwin::cuda
