#include "engine/steps/step_graph_retrieval.h"

#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "engine/base/check.h"

namespace kvtwin {
namespace {

class RetrievalBuilder {
 public:
  explicit RetrievalBuilder(const RetrievalStepSpec& spec) : spec_(spec) {
    KVT_CHECK(spec.layers >= 1 && spec.layers < kNoLayer && spec.layers_dense <= spec.layers);
    KVT_CHECK(spec.staging_buffers == 1 || spec.staging_buffers == 2);
    KVT_CHECK(spec.kind != RetrievalKind::kRecallsTokens || spec.layers_dense >= 1);
    compute_ = graph().add_stream("compute");
    if (spec.kind != RetrievalKind::kReadsAll) {
      select_ = graph().add_stream("select");
      h2d_ = graph().add_stream("h2d");
      convert_ = graph().add_stream("convert");
      d2h_ = graph().add_stream("d2h");
      host_ = graph().add_stream("host");
    }
    step_.layers.resize(spec.layers);
  }

  RetrievalStep build() {
    const bool one_buffer = spec_.staging_buffers == 1 && spec_.converts;
    if (one_buffer) staging_ = graph().add_port("staging", kNoLayer);
    const StepList list = list_step(whole_list());
    const std::span<const ListedOperation> all = list.operations();
    for (size_t i = 0; i < all.size(); ++i) {
      // A norm belongs to the product that follows it.
      const Operation priced_with = all[i].kind == Operation::kNorm ? all[i + 1].kind : all[i].kind;
      all[i].layer == kNoLayer ? outside(priced_with, all[i]) : in_layer(priced_with, all[i]);
    }
    if (spec_.compresses != CompressionPlace::kNone && step_.bookkeeping == kNoOp) compress_behind();
    for (const ListedOperation& one : aged_) graph().add_part(step_.layers[one.layer].append, one);
    if (spec_.kind != RetrievalKind::kReadsAll && compresses()) price_prompts();
    if (one_buffer && last_convert_ != kNoOp) graph().feed(staging_, last_convert_);
    graph().seal();
    return std::move(step_);
  }

 private:
  StepGraph& graph() { return step_.graph; }

  bool compresses() const { return spec_.captures || spec_.compresses != CompressionPlace::kNone; }

  // The list of a step that has everything: rows for every kernel, choices, and completed pages.
  StepListSpec whole_list() const {
    constexpr AttentionRows kAll{true, true, true};
    const bool retrieves = spec_.kind != RetrievalKind::kReadsAll;
    return {spec_.layers,
            true,
            {.rows = kAll,
             .dense_rows = kAll,
             .layers_dense = spec_.layers_dense,
             .kind = spec_.kind,
             .speculation = spec_.speculation,
             .chooses = retrieves,
             .fills = retrieves,
             .fetches_rows = true,
             .projects_keys = spec_.kind == RetrievalKind::kRecallsTokens,
             .packed_decodes = !retrieves,
             .keeps = !retrieves && !compresses(),
             .requantises = !retrieves},
            {.plans_layers = compresses(),
             .copies = compresses(),
             .captures = compresses(),
             .in_layers = spec_.compresses == CompressionPlace::kInLayers,
             .behind = spec_.compresses == CompressionPlace::kBehindLayers ? 1u : 0u}};
  }

  OpId add(OpKind kind, StreamId stream, uint16_t layer, uint32_t outcome) {
    return graph().add(
        {.kind = kind, .stream = stream, .layer = layer, .outcome = static_cast<int>(outcome)});
  }
  OpId add(OpKind kind, StreamId stream, uint16_t layer) {
    return graph().add({.kind = kind, .stream = stream, .layer = layer});
  }
  // *op prices `part` beside the operations that it prices already; it is added for the first of them.
  void price(OpKind kind, const ListedOperation& part, OpId* op) {
    if (*op == kNoOp) *op = add(kind, compute_, part.layer);
    graph().add_part(*op, part);
  }

  void outside(Operation priced_with, const ListedOperation& one) {
    if (step_.sample != kNoOp) return behind_layers(one);
    if (priced_with == Operation::kLogits) return price(OpKind::kGemm, one, &step_.after);
    if (priced_with != Operation::kSample) return price(OpKind::kGemm, one, &step_.before);
    if (spec_.all_reduces) step_.all_reduce = add(OpKind::kAllReduce, compute_, kNoLayer);
    price(OpKind::kSample, one, &step_.sample);
  }

  // Compressions behind the layers. Each sends two lists: what is scored, and what is retained.
  void behind_layers(const ListedOperation& one) {
    if (step_.bookkeeping == kNoOp) compress_behind();
    const bool scored = !graph().parts(step_.score).empty() && one.kind != Operation::kScore;
    const bool selects = one.kind == Operation::kSelect || (one.kind == Operation::kUpload && scored);
    graph().add_part(one.kind == Operation::kMove ? step_.compact
                     : selects                    ? step_.select
                                                  : step_.score,
                     one);
  }

  void in_layer(Operation priced_with, const ListedOperation& one) {
    const uint16_t l = one.layer;
    RetrievalLayerOps* const ops = &step_.layers[l];
    switch (priced_with) {
      case Operation::kQkv:
        return price(OpKind::kGemm, one, &ops->query);
      case Operation::kPlan:
        return graph().add_part(ops->query, one);
      case Operation::kRequantise:
        return aged_.push_back(one);
      case Operation::kAppend:
        price(OpKind::kRopeAppend, one, &ops->append);
        if (!retrieves(l) && recalls(spec_.kind) && spec_.keeps_prefixes) offload(l, ops);
        return;
      case Operation::kSummarise:
        ops->summarise = add(OpKind::kSummarise, compute_, l, step_.filled());
        return graph().add_part(ops->summarise, one);
      case Operation::kOffload:
        offload(l, ops);
        return graph().add_part(ops->offload, one);
      case Operation::kCompare:
        recall_done_ = graph().add_port("recall_done", l);
        ops->cosine = add(OpKind::kCosineCheck, compute_, l);
        return graph().add_part(ops->cosine, one);
      case Operation::kKeepQuery:
        if (ops->cosine != kNoOp) return graph().add_part(ops->cosine, one);
        return with_attention(one, ops);
      case Operation::kFetchRows:
        return graph().add_part(ops->append, one);
      case Operation::kProject:
        if (one.part != ListPart::kQueries) return graph().add_part(ops->append, one);
        ops->reproject = add(OpKind::kReproject, compute_, l, step_.flagged(l));
        return graph().add_part(ops->reproject, one);
      case Operation::kRebuild:
        ops->reconstruct = add(OpKind::kReconstruct, compute_, l, step_.flagged(l));
        return graph().add_part(ops->reconstruct, one);
      case Operation::kPageScore:
      case Operation::kChoose:
      case Operation::kRecall:
        return choose(one, ops);
      case Operation::kCounts:
        return graph().add_part(ops->top_k_next == kNoOp ? ops->attention : ops->top_k_next, one);
      case Operation::kDecodeAttention:
      case Operation::kChunkAttention:
      case Operation::kRowAttention:
      case Operation::kPackedAttention:
      case Operation::kTokenAttention:
        return with_attention(one, ops);
      case Operation::kCapture:
      case Operation::kScore:
      case Operation::kSelect:
      case Operation::kMove:
        if (ops->append == kNoOp) return graph().add_part(ops->query, one);  // a copy before it
        compress(l, ops);
        return graph().add_part(priced_compression(one, *ops), one);
      default:
        compress(l, ops);
        price(OpKind::kGemm, one, &ops->rest);
        if (one.kind == Operation::kDown && spec_.all_reduces)
          ops->all_reduce = add(OpKind::kAllReduce, compute_, l);
    }
  }

  // Copies of a window's queries, and of KV entries that are packed later, are in the price of attention.
  static OpId priced_compression(const ListedOperation& one, const RetrievalLayerOps& ops) {
    const OpId own = one.kind == Operation::kCapture  ? ops.capture
                     : one.kind == Operation::kScore  ? ops.score
                     : one.kind == Operation::kSelect ? ops.select
                     : one.kind == Operation::kMove   ? ops.compact
                                                      : kNoOp;
    return own == kNoOp ? ops.attention : own;
  }

  // Prompts beside requests that choose pages of what is retained. Their rows are priced with the others'.
  void price_prompts() {
    StepListSpec spec = whole_list();
    spec.prompts = {.apart = true, .prompts = true, .prompts_aside = true, .last = true};
    spec.prompts.attention.rows = {true, true, true};
    for (uint32_t l = 0; l < spec_.layers; ++l) {
      const RetrievalLayerOps& ops = step_.layers[l];
      const StepList list = list_attention(spec, l);
      for (const ListedOperation& one : list.operations()) {
        const OpId priced_with = one.kind == Operation::kPlan     ? ops.query
                                 : one.kind == Operation::kAppend ? ops.append
                                 : one.part == ListPart::kAside   ? ops.append
                                 : one.part == ListPart::kBack    ? ops.attention
                                                                  : priced_compression(one, ops);
        graph().add_part(priced_with, one);
      }
    }
  }

  void with_attention(const ListedOperation& one, RetrievalLayerOps* ops) {
    if (ops->attention == kNoOp) attend(one.layer, ops);
    graph().add_part(ops->attention, one);
  }

  void attend(uint16_t l, RetrievalLayerOps* ops) {
    ops->attention = add(OpKind::kAttention, compute_, l);
    if (spec_.kind == RetrievalKind::kRecallsTokens && retrieves(l)) arrived_ = ahead_[l % 2];
    if (arrived_ != kNoOp) graph().after(ops->attention, arrived_);
    if (recall_done_) graph().after(ops->attention, *recall_done_);
    arrived_ = kNoOp;
  }

  // What a layer does about pages, between its append and its attention, or in the background after it; and
  // about tokens, in the layer before.
  void choose(const ListedOperation& one, RetrievalLayerOps* ops) {
    if (!one.required) return choose_next(one, ops);
    if (one.kind == Operation::kRecall) return recall_now(one, ops);
    if (one.kind == Operation::kPageScore) choose_now(one.layer, ops);
    graph().add_part(one.kind == Operation::kPageScore ? ops->score_now : ops->top_k_now, one);
  }

  // Pages for the next step, in the background.
  void choose_next(const ListedOperation& one, RetrievalLayerOps* ops) {
    if (one.kind == Operation::kRecall) return recall_next(one, ops);
    if (one.kind == Operation::kPageScore) {
      ops->score_next = background(OpKind::kPageScore, one.layer);
      graph().after(ops->score_next, ops->append);
      return graph().add_part(ops->score_next, one);
    }
    ops->top_k_next = background(OpKind::kTopK, one.layer);
    graph().add_part(ops->top_k_next, one);
  }

  // Selects pages for this step: on the compute stream, before the operations that depend on the selection.
  void choose_now(uint16_t l, RetrievalLayerOps* ops) {
    ops->score_now = add(OpKind::kPageScore, compute_, l, step_.flagged(l));
    ops->top_k_now = add(OpKind::kTopK, compute_, l, step_.flagged(l));
  }

  // Scores, recall of absent pages and attention, one after another; where pages for the next step are
  // selected in the background, those of corrected heads alone. Values are recalled while keys are
  // reconstructed, tokens while the layer before attends.
  void recall_now(const ListedOperation& one, RetrievalLayerOps* ops) {
    const uint16_t l = one.layer;
    const bool speculation = ops->cosine != kNoOp, tokens = spec_.kind == RetrievalKind::kRecallsTokens;
    if (!speculation) ops->sync = add(OpKind::kHostWork, tokens ? host_ : compute_, l, step_.flagged(l));
    if (tokens) graph().after(ops->sync, ops->top_k_now);
    const OpId arrives = deliver(l, speculation ? ops->top_k_now : ops->sync, true, step_.blocking(l),
                                 &ops->recall_now, &ops->convert_now);
    tokens ? ahead_[l % 2] = arrives : arrived_ = arrives;
    graph().add_part(ops->recall_now, one);
  }

  void recall_next(const ListedOperation& one, RetrievalLayerOps* ops) {
    const uint16_t l = one.layer;
    // After attention, because attention reads the slots that are overwritten, and staging holds the pages of
    // only two heads.
    const OpId next =
        deliver(l, ops->top_k_next, false, step_.background(l), &ops->recall_next, &ops->convert_next);
    graph().after(ops->recall_next, ops->attention);
    graph().after(ops->recall_next, ops->top_k_now);  // corrected heads select there, for all heads
    graph().feed(*recall_done_, next);
    graph().add_part(ops->recall_next, one);
    recall_done_.reset();
  }

  OpId background(OpKind kind, uint16_t l) {
    return graph().add({.kind = kind,
                        .stream = select_,
                        .layer = l,
                        .required = false,
                        .outcome = static_cast<int>(step_.unflagged(l))});
  }

  // Adds recall and conversion; returns the last of the two. REQUIRES: `cause` determines what is recalled.
  OpId deliver(uint16_t l, OpId cause, bool required, uint32_t outcome, OpId* recall, OpId* convert) {
    *recall = graph().add({.kind = OpKind::kRecall,
                           .stream = h2d_,
                           .layer = l,
                           .required = required,
                           .outcome = static_cast<int>(outcome)});
    graph().after(*recall, cause);
    if (!spec_.converts) return *recall;
    if (spec_.staging_buffers == 1) {
      if (last_convert_ == kNoOp) {
        graph().after(*recall, staging_);
      } else {
        graph().behind(*recall, last_convert_);
      }
    }
    *convert = graph().add({.kind = OpKind::kConvert,
                            .stream = convert_,
                            .layer = l,
                            .required = required,
                            .outcome = static_cast<int>(outcome),
                            .delivers = true});
    graph().after(*convert, *recall);
    last_convert_ = *convert;
    return *convert;
  }

  void offload(uint16_t l, RetrievalLayerOps* ops) {
    ops->offload_done = graph().add_port("offload_done", l);
    graph().after(ops->append, ops->offload_done);
    ops->offload = graph().add({.kind = OpKind::kOffload,
                                .stream = d2h_,
                                .layer = l,
                                .required = false,
                                .outcome = static_cast<int>(step_.filled())});
    graph().after(ops->offload, ops->summarise == kNoOp ? ops->append : ops->summarise);
    graph().feed(ops->offload_done, ops->offload);
  }

  bool retrieves(uint32_t l) const {
    return spec_.kind != RetrievalKind::kReadsAll && l >= spec_.layers_dense;
  }

  // Adds the operations of the layer's compressions, once.
  void compress(uint16_t l, RetrievalLayerOps* ops) {
    if (l < compressed_) return;
    ++compressed_;
    if (spec_.captures) ops->capture = add(OpKind::kCapture, compute_, l);
    if (spec_.compresses != CompressionPlace::kInLayers) return;
    ops->score = add(OpKind::kScore, compute_, l, step_.compressing());
    ops->select = add(OpKind::kSelect, compute_, l, step_.compressing());
    ops->compact = add(OpKind::kCompact, compute_, l, step_.compressing());
  }

  // Adds the compression operations that run once, for all layers.
  void compress_behind() {
    const uint32_t happens = step_.compressing();
    if (spec_.compresses == CompressionPlace::kBehindLayers) {
      step_.probe = add(OpKind::kProbe, compute_, kNoLayer, step_.passing());
      step_.score = add(OpKind::kScore, compute_, kNoLayer, happens);
      step_.select = add(OpKind::kSelect, compute_, kNoLayer, happens);
      step_.compact = add(OpKind::kCompact, compute_, kNoLayer, happens);
    }
    step_.bookkeeping = add(OpKind::kHostWork, compute_, kNoLayer, happens);
  }

  const RetrievalStepSpec spec_;
  RetrievalStep step_;
  StreamId compute_{}, select_{}, h2d_{}, convert_{}, d2h_{}, host_{};
  PortId staging_{};
  OpId last_convert_ = kNoOp;
  OpId arrived_ = kNoOp;               // the delivery that the layer's attention waits for
  std::optional<PortId> recall_done_;  // of the layer
  std::vector<ListedOperation> aged_;  // priced with the append of their layers
  uint32_t compressed_ = 0;            // layers that compress() has seen
  OpId ahead_[2] = {kNoOp, kNoOp};     // InfiniGen: recalls of layers l and l + 1
};

}  // namespace

RetrievalStep make_retrieval_step(const RetrievalStepSpec& spec) { return RetrievalBuilder(spec).build(); }

}  // namespace kvtwin
