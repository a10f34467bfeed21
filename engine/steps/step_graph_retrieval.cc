#include "engine/steps/step_graph_retrieval.h"

#include <utility>

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
    step_.before = graph().add({.kind = OpKind::kGemm, .stream = compute_});
    for (uint32_t l = 0; l < spec_.layers; ++l) layer(static_cast<uint16_t>(l));
    step_.after = graph().add({.kind = OpKind::kGemm, .stream = compute_});
    if (spec_.all_reduces) step_.all_reduce = add(OpKind::kAllReduce, compute_, kNoLayer);
    step_.sample = graph().add({.kind = OpKind::kSample, .stream = compute_});
    compress_behind();
    if (one_buffer && last_convert_ != kNoOp) graph().feed(staging_, last_convert_);
    graph().seal();
    return std::move(step_);
  }

 private:
  StepGraph& graph() { return step_.graph; }

  OpId add(OpKind kind, StreamId stream, uint16_t layer, uint32_t outcome) {
    return graph().add(
        {.kind = kind, .stream = stream, .layer = layer, .outcome = static_cast<int>(outcome)});
  }
  OpId add(OpKind kind, StreamId stream, uint16_t layer) {
    return graph().add({.kind = kind, .stream = stream, .layer = layer});
  }

  // Selects pages for this step: on the compute stream, before the operations that depend on the selection.
  void choose_now(uint16_t l, RetrievalLayerOps* ops) {
    ops->score_now = add(OpKind::kPageScore, compute_, l, step_.flagged(l));
    ops->top_k_now = add(OpKind::kTopK, compute_, l, step_.flagged(l));
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

  void attend(uint16_t l, RetrievalLayerOps* ops) { ops->attention = add(OpKind::kAttention, compute_, l); }

  // Scores, recall of absent pages and attention, one after another.
  void recall_first(uint16_t l, RetrievalLayerOps* ops) {
    choose_now(l, ops);
    ops->sync = add(OpKind::kHostWork, compute_, l, step_.flagged(l));
    const OpId arrived = deliver(l, ops->sync, true, step_.blocking(l), &ops->recall_now, &ops->convert_now);
    attend(l, ops);
    graph().after(ops->attention, arrived);
  }

  // Values are recalled while keys are reconstructed.
  void rebuild_keys(uint16_t l, RetrievalLayerOps* ops) {
    choose_now(l, ops);
    ops->sync = add(OpKind::kHostWork, compute_, l, step_.flagged(l));
    const OpId arrived = deliver(l, ops->sync, true, step_.blocking(l), &ops->recall_now, &ops->convert_now);
    ops->reconstruct = add(OpKind::kReconstruct, compute_, l, step_.flagged(l));
    attend(l, ops);
    graph().after(ops->attention, arrived);
  }

  // Pages are selected and their recall is issued in the layer before, from its input.
  void choose_ahead(uint16_t l) {
    RetrievalLayerOps& ops = step_.layers[l];
    ops.reproject = add(OpKind::kReproject, compute_, l, step_.flagged(l));
    choose_now(l, &ops);
    ops.sync = add(OpKind::kHostWork, host_, l, step_.flagged(l));
    graph().after(ops.sync, ops.top_k_now);
    arrived_[l % 2] = deliver(l, ops.sync, true, step_.blocking(l), &ops.recall_now, &ops.convert_now);
  }

  void speculate(uint16_t l, RetrievalLayerOps* ops) {
    const PortId recall_done = graph().add_port("recall_done", l);
    ops->cosine = add(OpKind::kCosineCheck, compute_, l);
    choose_now(l, ops);
    const OpId arrived =
        deliver(l, ops->top_k_now, true, step_.blocking(l), &ops->recall_now, &ops->convert_now);
    attend(l, ops);
    graph().after(ops->attention, arrived);
    graph().after(ops->attention, recall_done);
    ops->score_next = background(OpKind::kPageScore, l);
    graph().after(ops->score_next, ops->append);
    ops->top_k_next = background(OpKind::kTopK, l);
    // After attention, because attention reads the slots that are overwritten, and staging holds the pages of
    // only two heads.
    const OpId next =
        deliver(l, ops->top_k_next, false, step_.background(l), &ops->recall_next, &ops->convert_next);
    graph().after(ops->recall_next, ops->attention);
    graph().after(ops->recall_next, ops->top_k_now);  // corrected heads select there, for all heads
    graph().feed(recall_done, next);
  }

  OpId background(OpKind kind, uint16_t l) {
    return graph().add({.kind = kind,
                        .stream = select_,
                        .layer = l,
                        .required = false,
                        .outcome = static_cast<int>(step_.unflagged(l))});
  }

  void query(uint16_t l, RetrievalLayerOps* ops) {
    ops->query = add(OpKind::kGemm, compute_, l);
    ops->append = add(OpKind::kRopeAppend, compute_, l);
    if (retrieves(l)) ops->summarise = add(OpKind::kSummarise, compute_, l, step_.filled());
    const bool on_host = recalls(spec_.kind);
    if (on_host && (retrieves(l) || spec_.keeps_prefixes)) offload(l, ops);
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

  void layer(uint16_t l) {
    RetrievalLayerOps* const ops = &step_.layers[l];
    const bool ahead =
        spec_.kind == RetrievalKind::kRecallsTokens && l + 1u < spec_.layers && retrieves(l + 1u);
    if (ahead) choose_ahead(static_cast<uint16_t>(l + 1));
    query(l, ops);
    if (!retrieves(l)) {
      attend(l, ops);
    } else {
      switch (spec_.kind) {
        case RetrievalKind::kReadsAll:
          break;
        case RetrievalKind::kPagesOnGpu:
          choose_now(l, ops);
          attend(l, ops);
          break;
        case RetrievalKind::kRecallsPages:
          speculates(spec_.kind, spec_.speculation) ? speculate(l, ops) : recall_first(l, ops);
          break;
        case RetrievalKind::kRecallsValues:
          rebuild_keys(l, ops);
          break;
        case RetrievalKind::kRecallsTokens:
          attend(l, ops);
          graph().after(ops->attention, arrived_[l % 2]);
          break;
      }
    }
    if (spec_.captures) ops->capture = add(OpKind::kCapture, compute_, l);
    if (spec_.compresses == CompressionPlace::kInLayers) {
      ops->score = add(OpKind::kScore, compute_, l, step_.compressing());
      ops->select = add(OpKind::kSelect, compute_, l, step_.compressing());
      ops->compact = add(OpKind::kCompact, compute_, l, step_.compressing());
    }
    ops->rest = add(OpKind::kGemm, compute_, l);
    if (spec_.all_reduces) ops->all_reduce = add(OpKind::kAllReduce, compute_, l);
  }

  // Adds the compression operations that run once, for all layers.
  void compress_behind() {
    if (spec_.compresses == CompressionPlace::kNone) return;
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
  OpId arrived_[2] = {kNoOp, kNoOp};  // InfiniGen: recalls of layers l and l + 1
};

}  // namespace

RetrievalStep make_retrieval_step(const RetrievalStepSpec& spec) { return RetrievalBuilder(spec).build(); }

}  // namespace kvtwin
