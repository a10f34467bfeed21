// What one layer of a FactoredCache starts: entries of the step's list of operations.

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
namespace {

using Access = HappensBefore::Access;
using namespace watched;

}  // namespace

StepListSpec FactoredCache::listed(const DeviceRows& rows) const {
  StepListSpec out{llm_.layers, false, {.layers_dense = spec_.layers_dense, .kind = kind_}};
  out.attention.rows = rows_present(rows);
  if (spec_.layers_dense > 0) out.attention.dense_rows = dense_.rows_present();
  out.attention.chooses = !choice_rows_.empty() || !token_rows_.empty();
  out.attention.fills = !sealed_.empty();
  out.attention.fetches_rows = rows_needed() && !rows_.empty();
  out.attention.projects_keys = !key_rows_.empty();
  out.attention.uploads = spec_.layers_dense > 0 ? 3 : 2;  // the step's rows, choices, rows of dense layers
  return out;
}

void FactoredCache::attend(uint32_t layer, const LayerRows& tensors, const DeviceRows& rows,
                           const StepStream&) {
  const StepList list = list_attention(listed(rows), layer);
  for (const ListedOperation& one : list.operations()) {
    order_->begin(one);
    if (dense(one.layer)) {
      dense_.start(one, tensors, resident_.layer(one.layer), order_->stream(one.stream));
    } else {
      start(one, tensors, rows);
    }
    order_->end(one);
  }
}

void FactoredCache::start(const ListedOperation& one, const LayerRows& tensors, const DeviceRows& rows) {
  const uint32_t layer = one.layer;
  const cudaStream_t stream = order_->stream(one.stream);
  switch (one.kind) {
    case Operation::kAppend:
      return append(layer, tensors, rows, stream);
    case Operation::kSummarise:
      return summarise(layer, stream);
    case Operation::kOffload:
      return offload(layer, stream);
    case Operation::kFetchRows:
      return take_rows(layer, tensors, stream);
    case Operation::kProject:
      if (one.part == ListPart::kQueries) return project_queries(layer, tensors, rows, stream);
      return project_keys(layer, stream);
    case Operation::kPageScore:
      return score(layer, tensors, stream);
    case Operation::kChoose:
      return choose(layer, tensors, stream);
    case Operation::kRecall:
      return recall(layer, stream);
    case Operation::kRebuild:
      return rebuild(layer, stream);
    case Operation::kKeepQuery:
      return store_queries(layer, tensors, stream);
    case Operation::kTokenAttention:
      return attend_tokens(layer, tensors, stream);
    case Operation::kCounts:
      return fetch_counts(stream);
    default:
      order_->touches(StreamKind::kCompute, Access::kRead, kPages, layer, "attention");
      if (shadow()) order_->touches(StreamKind::kCompute, Access::kRead, kSlots, layer, "attention");
      attention_.start(one, tensors, rows, pages_.layer(layer), stream);
  }
}

void FactoredCache::append(uint32_t layer, const LayerRows& tensors, const DeviceRows& rows,
                           cudaStream_t stream) {
  order_->touches(StreamKind::kCompute, Access::kWrite, kPages, layer, "append");
  attention_.append(tensors, rows, pages_.layer(layer), stream, keys_.as<__nv_bfloat16>());
}

void FactoredCache::summarise(uint32_t layer, cudaStream_t stream) {
  SummaryArgs args;
  args.pool = pages_.layer(layer), args.pages = upload_.at(at_.summaries);
  args.out = choices_.summaries(chooser(layer)), args.count = at_.summaries.count;
  args.page_tokens = memory_.page_tokens, args.head_dim = llm_.head_dim, args.kind = kind_of(spec_.summary);
  must(summarise_pages(args, stream), "summarise_pages");
}

void FactoredCache::offload(uint32_t layer, cudaStream_t stream) {
  const uint64_t bytes = pages_.part_bytes(), numbers = bytes / sizeof(__nv_bfloat16);
  order_->touches(StreamKind::kOffload, Access::kRead, kPages, layer, "offload");
  for (const Sealed& page : sealed_) {
    order_->touches(StreamKind::kOffload, Access::kWrite, kHostCopy, page.owner * llm_.layers + layer,
                    "offload");
    must(cudaMemcpyAsync(const_cast<__nv_bfloat16*>(host_copy_block(layer, page.owner, 0)),
                         pages_.layer(layer) + page.page * numbers, bytes, cudaMemcpyDeviceToHost, stream),
         "copy of a page to the host", bytes,
         [&] { return fmt::format("page {}, layer {}", page.page, layer); });
  }
}

ChoiceArgs FactoredCache::page_args(uint32_t layer, const LayerRows& tensors) const {
  ChoiceArgs args = choices_.args(chooser(layer), ChoosesFor::kThisStep);
  args.rows = upload_.at(at_.choices), args.count = at_.choices.count;
  args.lists = upload_.at(at_.lists), args.q = tensors.q;
  args.tables = choices_.spare_tables();  // attention reads all slots
  args.stays = stays_.layer<uint32_t>(chooser(layer)), args.stay = shape_.extra;
  return args;
}

// InfiniGen: from the input of the layer before.
void FactoredCache::score(uint32_t layer, const LayerRows& tensors, cudaStream_t stream) {
  const auto shape = [&] { return fmt::format("layer {}", layer); };
  if (!shadow()) {
    const TokenChoiceArgs args = token_args(layer);
    must(cudaMemsetAsync(args.near, 0, args.count * sizeof *args.near, stream), "numbers of tokens");
    return must(score_tokens(args, stream), "score_tokens", 0, shape);
  }
  const ChoiceArgs args = page_args(layer, tensors);
  must(cudaMemsetAsync(args.counts, 0, sizeof(ChoiceCounts), stream), "counts of choices");
  must(score_pages(choices_.shape(), args, stream), "score_pages", 0, shape);
}

void FactoredCache::choose(uint32_t layer, const LayerRows& tensors, cudaStream_t stream) {
  const auto shape = [&] { return fmt::format("layer {}", layer); };
  order_->touches(StreamKind::kCompute, Access::kWrite, kChoices, layer, "choice");
  if (shadow())
    return must(choose_pages(choices_.shape(), page_args(layer, tensors), stream), "choose_pages", 0, shape);
  const TokenChoiceArgs args = token_args(layer);
  must(choose_tokens(args, stream), "choose_tokens", 0, shape);
  if (selected_tokens_) show_tokens(layer, args, stream);
}

// ShadowKV: values of chosen pages come from their homes, keys of all that are read are rebuilt: directions
// may be newer than when a page came. InfiniGen: one by one into the slots between sinks and window.
void FactoredCache::recall(uint32_t layer, cudaStream_t stream) {
  touches_host_copies(layer);
  order_->touches(StreamKind::kRecall, Access::kRead, kChoices, layer, "recall");
  order_->touches(StreamKind::kRecall, Access::kWrite, kSlots, layer, "recall");
  const auto shape = [&] { return fmt::format("layer {}", layer); };
  if (!shadow()) {
    const RecallTokensArgs tokens{host_layer(layer), pages_.layer(layer), token_args(layer),
                                  memory_.pages_gpu, memory_.poison};
    return must(recall_tokens(tokens, stream), "recall_tokens", 0, shape);
  }
  const ChoiceArgs args = choices_.args(chooser(layer), ChoosesFor::kThisStep);
  RecallArgs values{host_layer(layer), pages_.layer(layer), args.before, &args.counts->before, kRecallCtas};
  values.values_only = true;
  must(recall_pages(values, stream), "recall_pages", 0, shape);
}

void FactoredCache::touches_host_copies(uint32_t layer) {
  if (!order_->watched()) return;
  const auto touch = [&](uint32_t list, uint32_t pages) {
    for (uint32_t i = 0; i < pages; ++i)
      order_->touches(StreamKind::kRecall, Access::kRead, kHostCopy, lists_[list + i] * llm_.layers + layer,
                      "recall");
  };
  for (const ChoiceRow& row : choice_rows_) touch(row.owners, row.candidates);
  for (const TokenRow& row : token_rows_)
    touch(row.host_copies, (row.first + row.candidates) / memory_.page_tokens);
}

void FactoredCache::store_queries(uint32_t layer, const LayerRows& tensors, cudaStream_t stream) {
  must(keep_queries(upload_.at(at_.retained), at_.retained.count, q_width(), tensors.q,
                    choices_.q_before(chooser(layer)), stream),
       "keep_queries");
}

void FactoredCache::fetch_counts(cudaStream_t stream) {
  if (shadow()) return choices_.fetch_counts(stream);
  must(cudaMemcpyAsync(numbers_host_.as<void>(), numbers_.as<void>(),
                       uint64_t{choosers()} * token_rows_.size() * sizeof(uint32_t), cudaMemcpyDeviceToHost,
                       stream),
       "copy of numbers of tokens");
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
void FactoredCache::attend_tokens(uint32_t layer, const LayerRows& tensors, cudaStream_t stream) {
  for (const char* const what : {kPages, kSlots})
    order_->touches(StreamKind::kCompute, Access::kRead, what, layer, "attention");
  const ListAt<QueryRow>& reads = at_.reads[layer % 2];
  AttentionRowsArgs args;
  args.pool = pages_.layer(layer), args.pages = upload_.at(at_.kv_entries), args.list = upload_.at(reads);
  args.q = tensors.q, args.out = tensors.out;
  args.scale = 1 / std::sqrt(static_cast<float>(llm_.head_dim));
  args.rows = reads.count, args.query_heads = llm_.query_heads, args.kv_heads = llm_.kv_heads;
  args.head_dim = llm_.head_dim, args.page_tokens = memory_.page_tokens, args.heads_per_page = llm_.kv_heads;
  args.by_head = args.listed = true;
  must(attention_rows(args, stream), "attention_rows", 0,
       [&] { return fmt::format("{} rows and heads, layer {}", args.rows, layer); });
}

}  // namespace kvtwin::cuda
