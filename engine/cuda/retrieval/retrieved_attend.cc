// The operations of one layer of a RetrievedCache, and their streams.

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/check.h"
#include "engine/cuda/device/cuda_check.h"
#include "engine/cuda/page_choosing.h"
#include "engine/cuda/retrieval/retrieved_cache.h"

namespace kvtwin::cuda {
namespace {

using Access = HappensBefore::Access;
using namespace watched;

// Concurrently with the step after attention: one warp per SM, and stores in bursts (kernels/README.md).
constexpr uint32_t kRecallWarps = 132, kRecallBurstNs = 25'500;
constexpr uint32_t kStagedMax = 64;

// What is chosen or recalled off the compute stream is for the next step.
ChoosesFor step_of(const ListedOperation& one) {
  return one.stream == StreamKind::kCompute ? ChoosesFor::kThisStep : ChoosesFor::kNextStep;
}

}  // namespace

StepListSpec RetrievedCache::listed(const DeviceRows& rows) const {
  StepListSpec out = sealing();
  out.attention.rows = rows_present(rows);
  if (spec_.layers_dense > 0) out.attention.dense_rows = dense_.rows_present();
  out.attention.chooses = !choice_rows_.empty();
  out.attention.uploads = spec_.layers_dense > 0 ? 3 : 2;  // the step's rows, choices, rows of dense layers
  return out;
}

// What is listed of a step whose rows choose nothing.
StepListSpec RetrievedCache::sealing() const {
  return {
      llm_.layers,
      false,
      {.layers_dense = spec_.layers_dense, .kind = kind_, .speculation = spec_.speculation, .fills = fills_}};
}

void RetrievedCache::attend(uint32_t layer, const LayerRows& tensors, const DeviceRows& rows,
                            const StepStream&) {
  recall_deferred();
  const StepList list = list_attention(listed(rows), layer);
  for (const ListedOperation& one : list.operations()) {
    if (defers(one)) {
      deferred_ = one;
      continue;
    }
    // The host starts copies of pages behind the replay: see launched().
    if (one.stream == StreamKind::kOffload && order_->captured()) continue;
    order_->begin(one);
    if (dense(layer)) {
      dense_.start(one, tensors, resident() ? resident_.layer(layer) : pages_.layer(layer),
                   order_->stream(one.stream));
    } else {
      start(one, tensors, rows);
    }
    order_->end(one);
  }
}

void RetrievedCache::start(const ListedOperation& one, const LayerRows& tensors, const DeviceRows& rows) {
  const cudaStream_t stream = order_->stream(one.stream);
  switch (one.kind) {
    case Operation::kSummarise:
    case Operation::kOffload:
      return start_sealing(one);
    case Operation::kCompare:
      return compare(one.layer, choice_args(one, tensors, rows), stream);
    case Operation::kPageScore:
      return score(one, choice_args(one, tensors, rows));
    case Operation::kChoose:
      return choose(one, choice_args(one, tensors, rows));
    case Operation::kRecall:
      return recall(one, choices_.args(chooser(one.layer), step_of(one)));
    case Operation::kKeepQuery:
      order_->touches(StreamKind::kCompute, Access::kWrite, kQueries, one.layer, "stored queries");
      return must(keep_queries(upload_.at(at_.retained), static_cast<uint32_t>(retained_.size()),
                               llm_.query_heads * llm_.head_dim, tensors.q,
                               choices_.q_before(chooser(one.layer)), stream),
                  "keep_queries");
    case Operation::kCounts:
      return choices_.fetch_counts(stream);
    case Operation::kAppend:
      order_->touches(StreamKind::kCompute, Access::kWrite, kPages, one.layer, "append");
      break;
    default:
      for (const char* const what : {kPages, kSlots})
        order_->touches(StreamKind::kCompute, Access::kRead, what, one.layer, "attention");
  }
  attention_.start(one, tensors, rows, pages_.layer(one.layer), stream);
}

// The copies to the host of a step that was replayed.
void RetrievedCache::launched() {
  for (uint32_t layer = spec_.layers_dense; layer < llm_.layers; ++layer) {
    const StepList list = list_attention(sealing(), layer);
    for (const ListedOperation& one : list.operations()) {
      if (one.kind != Operation::kOffload) continue;
      order_->begin(one);
      offload(layer);
      order_->end(one);
    }
  }
}

void RetrievedCache::start_sealing(const ListedOperation& one) {
  if (one.kind == Operation::kOffload) return offload(one.layer);
  // Exact keys of the pages that this step has filled.
  SummaryArgs args;
  args.pool = pages_.layer(one.layer);
  args.pages = upload_.at(at_.summaries);
  args.out = choices_.summaries(chooser(one.layer));
  args.count = at_.summaries.count;
  args.page_tokens = memory_.page_tokens, args.head_dim = llm_.head_dim;
  args.kind = kind_of(spec_.summary);
  must(summarise_pages(args, order_->stream(one.stream)), "summarise_pages", 0,
       [&] { return fmt::format("{} pages, layer {}", sealed_.size(), one.layer); });
}

void RetrievedCache::offload(uint32_t layer) {
  const cudaStream_t stream = order_->stream(StreamKind::kOffload);
  const HostPool host = host_layer(layer);
  const uint64_t numbers = host.page_numbers(), bytes = numbers * sizeof(__nv_bfloat16);
  order_->touches(StreamKind::kOffload, Access::kRead, kPages, layer, "offload");
  for (const Sealed& page : sealed_)
    order_->touches(StreamKind::kOffload, Access::kWrite, kHostCopy, page.owner * llm_.layers + layer,
                    "offload");
  for (size_t i = 0; i < sealed_.size(); ++i) {
    const __nv_bfloat16* from = pages_.layer(layer) + sealed_[i].page * numbers;
    if (copies_.layout == HostPageLayout::kNhd) {
      const size_t staged = i % kStagedMax;
      from = staging_.as<__nv_bfloat16>(staged * bytes);
      const auto some = static_cast<uint32_t>(std::min<size_t>(kStagedMax, sealed_.size() - i));
      if (staged == 0) {
        must(stage_pages(
                 {pages_.layer(layer), upload_.at(at_.staged) + i, staging_.as<__nv_bfloat16>(), host, some},
                 stream),
             "stage_pages");
      }
    }
    __nv_bfloat16* const host_copy =
        pages_.host_layer(layer) + (sealed_[i].owner - memory_.pages_gpu) * host.page_stride;
    must(cudaMemcpyAsync(host_copy, from, bytes, cudaMemcpyDeviceToHost, stream),
         "copy of a page to the host", bytes,
         [&] { return fmt::format("page {}, layer {}", sealed_[i].page, layer); });
  }
}

ChoiceArgs RetrievedCache::choice_args(const ListedOperation& one, const LayerRows& tensors,
                                       const DeviceRows& rows) const {
  ChoiceArgs args = choices_.args(chooser(one.layer), step_of(one));
  args.rows = upload_.at(at_.choices), args.count = static_cast<uint32_t>(choice_rows_.size());
  args.lists = tables_.on_device();
  args.q = tensors.q;
  args.tables = const_cast<uint32_t*>(rows.pages);  // part of the upload, rewritten for each layer
  if (!forced_outcomes_.empty())
    args.forced_outcome =
        upload_.at(at_.forced_outcome) + size_t{chooser(one.layer)} * args.count * llm_.kv_heads;
  return args;
}

void RetrievedCache::compare(uint32_t layer, const ChoiceArgs& args, cudaStream_t stream) {
  order_->touches(StreamKind::kCompute, Access::kWrite, kQueries, layer, "comparison");
  order_->touches(StreamKind::kCompute, Access::kRead, kChoices, layer, "comparison");
  must(cudaMemsetAsync(args.counts, 0, sizeof(ChoiceCounts), stream), "counts of choices");
  must(compare_queries(choices_.shape(), args, stream), "compare_queries", 0,
       [&] { return fmt::format("{} rows, layer {}", args.count, layer); });
}

void RetrievedCache::score(const ListedOperation& one, const ChoiceArgs& args) {
  const cudaStream_t stream = order_->stream(one.stream);
  order_->touches(one.stream, Access::kRead, kQueries, one.layer, "scores");
  if (args.now == nullptr)
    must(cudaMemsetAsync(args.counts, 0, sizeof(ChoiceCounts), stream), "counts of choices");
  must(score_pages(choices_.shape(), args, stream), "score_pages", 0,
       [&] { return fmt::format("{} rows, layer {}", args.count, one.layer); });
}

void RetrievedCache::choose(const ListedOperation& one, const ChoiceArgs& args) {
  order_->touches(one.stream, Access::kWrite, kChoices, one.layer, "choice");
  must(choose_pages(choices_.shape(), args, order_->stream(one.stream)), "choose_pages", 0,
       [&] { return fmt::format("{} rows, layer {}", args.count, one.layer); });
  if (copied_ && args.step == ChoosesFor::kNextStep)
    copied_->fetch(args, args.count, order_->stream(one.stream));
}

// On the compute stream the list that attention waits for; on the recall stream the next step's.
void RetrievedCache::recall(const ListedOperation& one, const ChoiceArgs& args) {
  const bool concurrent = step_of(one) == ChoosesFor::kNextStep;
  for (const ChoiceRow& row : choice_rows_) {
    for (uint32_t i = 0; i < row.candidates && order_->watched(); ++i)
      order_->touches(one.stream, Access::kRead, kHostCopy, tables_[row.owners + i] * llm_.layers + one.layer,
                      "recall");
  }
  order_->touches(one.stream, Access::kRead, kChoices, one.layer, "recall");
  order_->touches(one.stream, Access::kWrite, kSlots, one.layer, "recall");
  if (copied_) {
    if (!concurrent) {
      copied_->fetch(args, static_cast<uint32_t>(choice_rows_.size()), order_->stream(one.stream));
      order_->wait_for(one.stream);
    }
    return copied_->start(args.step, chooser(one.layer), host_layer(one.layer), pages_.layer(one.layer),
                          choice_rows_, tables_.numbers(), order_->stream(one.stream));
  }
  const RecallMove* const moves = concurrent ? args.after : args.before;
  const uint32_t* const count = concurrent ? &args.counts->moves_after : &args.counts->before;
  must(recall_pages({host_layer(one.layer), pages_.layer(one.layer), moves, count,
                     concurrent ? kRecallWarps : kRecallCtas, concurrent, concurrent ? kRecallBurstNs : 0},
                    order_->stream(one.stream)),
       "recall_pages", 0, [&] { return fmt::format("layer {}", one.layer); });
}

// The host starts the copies for the next step when it has the next layer to start, instead of waiting for
// their list at once.
void RetrievedCache::recall_deferred() {
  if (!deferred_) return;
  order_->wait_for(StreamKind::kSelect);
  order_->begin(*deferred_);
  recall(*deferred_, choices_.args(chooser(deferred_->layer), ChoosesFor::kNextStep));
  order_->end(*deferred_);
  deferred_.reset();
}

// Moves prompts whose pages are all on the GPU to resident pages that hold some of them. The policy frees the
// remaining pages in the same order: the last pages first (ResidentKvManager). Slots are filled with the
// pages that the prompt's last query would read. They are read from the host, where they already are, because
// slots may hold other pages by now.
void RetrievedCache::enter_residents(const StepStream& on) {
  if (entering_.empty()) return;
  add_entering();
  const StepList list = list_entering(sealing());
  for (const ListedOperation& one : list.operations()) {
    order_->begin(one);
    if (one.kind == Operation::kMove) {
      copy_window(on.stream);
    } else if (one.kind == Operation::kUpload) {
      enter_upload_.send(on.stream);
      tables_.put(enter_upload_, on.stream);
    } else {
      fill_slots(one);
    }
    order_->end(one);
  }
  on.timer->end();
  choice_rows_.clear();
  must(cudaStreamSynchronize(on.stream), "filling of arenas");
  order_->step_ended();
}

void RetrievedCache::add_entering() {
  choice_rows_.clear(), sealed_.clear(), tables_.clear_step();
  fills_ = false;
  for (Request* const request : entering_) {
    ChoiceRow choice = choice_of(request, static_cast<uint32_t>(request->host_copies.size()));
    choice.row = choice.state;
    choice.table = static_cast<uint32_t>(choice_rows_.size()) * llm_.kv_heads * shape_.selectable;
    choice.table_stride = shape_.selectable;
    choice.held = Held::kNothing;
    choice_rows_.push_back(choice);
    request->filled = true;
  }
  reserve_rows();
  enter_upload_.clear();
  pack({}, &enter_upload_, &at_);
}

// Ring slots to be overwritten hold pages that left the window: see slot_of().
void RetrievedCache::copy_window(cudaStream_t stream) {
  for (const Request* const request : entering_) {
    const auto pages = static_cast<uint32_t>(request->host_copies.size());
    for (uint32_t page = std::max(pages - shape_.window, shape_.slots); page < pages; ++page)
      pages_.copy(PageId{request->pages[page]}, PageId{request->pages[shape_.slot_of(page)]}, stream);
  }
}

void RetrievedCache::fill_slots(const ListedOperation& one) {
  ChoiceArgs args = choices_.spare_args(chooser(one.layer));
  args.rows = enter_upload_.at(at_.choices);
  args.count = static_cast<uint32_t>(choice_rows_.size());
  args.lists = tables_.on_device();
  args.q = args.q_before;
  args.tables = choices_.spare_tables();
  if (one.kind == Operation::kRecall) return recall(one, args);
  if (one.kind == Operation::kChoose) return choose(one, args);
  order_->touches(StreamKind::kCompute, Access::kWrite, kPages, one.layer, "copies of the window");
  score(one, args);
}

// Converts the host's layout to the GPU's: a recall of all heads of whole pages. The kernel reads its list
// from pinned memory, where the host writes it.
void RetrievedCache::fetch(std::span<const PageId> host_copies, std::span<const PageId> pages,
                           cudaStream_t stream) {
  const uint64_t moves = host_copies.size() * uint64_t{llm_.kv_heads};
  const uint64_t bytes = div_ceil(kFetchHeader + moves * sizeof(RecallMove), kFetchHeader) * kFetchHeader;
  if (fetched_at_ + bytes > fetched_.bytes()) {
    must(cudaDeviceSynchronize(), "prefixes that were fetched before");
    fetched_at_ = 0;
  }
  KVT_CHECK(bytes <= fetched_.bytes());
  auto* const count = fetched_.as<uint32_t>(fetched_at_);
  auto* const list = fetched_.as<RecallMove>(fetched_at_ + kFetchHeader);
  fetched_at_ += bytes;
  *count = static_cast<uint32_t>(moves);
  for (uint64_t i = 0; i < moves; ++i) {
    const uint64_t page = i / llm_.kv_heads;
    const auto head = static_cast<uint32_t>(i % llm_.kv_heads);
    list[i] = {raw(host_copies[page]) - memory_.pages_gpu, head, raw(pages[page]) * llm_.kv_heads + head};
  }
  for (uint32_t layer = spec_.layers_dense; layer < llm_.layers; ++layer) {
    must(recall_pages({host_layer(layer), pages_.layer(layer), list, count, kRecallCtas, false}, stream),
         "recall_pages", 0,
         [&] { return fmt::format("{} pages of a prefix, layer {}", host_copies.size(), layer); });
  }
}

}  // namespace kvtwin::cuda
