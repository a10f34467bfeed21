#include "engine/steps/step_list.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "engine/base/check.h"

namespace kvtwin {
namespace {

constexpr const char* kOperationNames[] = {"upload",
                                           "embed",
                                           "norm",
                                           "qkv",
                                           "append",
                                           "plan",
                                           "decode attention",
                                           "chunk attention",
                                           "row attention",
                                           "attention out",
                                           "gate up",
                                           "activation",
                                           "down",
                                           "logits",
                                           "sample",
                                           "capture",
                                           "score",
                                           "select",
                                           "move",
                                           "summarise",
                                           "compare",
                                           "page score",
                                           "choose",
                                           "recall",
                                           "keep query",
                                           "counts",
                                           "offload",
                                           "requantise",
                                           "packed attention",
                                           "fetch rows",
                                           "project",
                                           "rebuild",
                                           "token attention"};
static_assert(std::size(kOperationNames) == kOperations);

constexpr const char* kStreamNames[] = {"compute", "recall", "offload", "select"};
static_assert(std::size(kStreamNames) == kStreamKinds);

constexpr const char* kEdgeNames[] = {"attended", "recalled", "sealed", "offloaded", "queried", "chosen"};
static_assert(std::size(kEdgeNames) == kEdges);

class Lister {
 public:
  explicit Lister(const StepListSpec& spec) : spec_(spec), attention_(spec.attention) {
    KVT_CHECK(spec.layers >= 1 && spec.layers < kNoLayer && attention_.layers_dense <= spec.layers);
  }

  StepList step() {
    list_.reserve(size_t{spec_.layers} * 24 + 16);
    for (uint32_t i = 0; i < spec_.compression.before; ++i) compress();
    if (attention_.requantises) {
      add(Operation::kUpload);
      for (uint32_t l = 0; l < spec_.layers; ++l) add(Operation::kRequantise, static_cast<uint16_t>(l));
    }
    for (uint32_t i = 0; i < attention_.uploads; ++i) {
      ListedOperation& upload = add(Operation::kUpload);
      if (i == 0 && recalls(attention_.kind)) upload.after = {Edge::kOffloaded, 0};
    }
    add(Operation::kEmbed);
    add(Operation::kPlan);
    for (uint32_t l = 0; l < spec_.layers; ++l) {
      const auto layer = static_cast<uint16_t>(l);
      for (const Operation kind : {Operation::kNorm, Operation::kQkv}) add(kind, layer);
      attend(layer);
      for (const Operation kind : {Operation::kAttentionOut, Operation::kNorm, Operation::kGateUp,
                                   Operation::kActivation, Operation::kDown})
        add(kind, layer);
    }
    if (spec_.samples) {
      for (const Operation kind : {Operation::kNorm, Operation::kLogits, Operation::kSample}) add(kind);
    }
    for (uint32_t i = 0; i < spec_.compression.behind; ++i) compress();
    return std::move(list_);
  }

  StepList compression() {
    compress();
    return std::move(list_);
  }

  StepList attention(uint16_t layer) {
    list_.reserve(16);
    attend(layer);
    return std::move(list_);
  }

  StepList entering() {
    KVT_CHECK(recalls(attention_.kind));
    add(Operation::kMove).after = {Edge::kOffloaded, 0};
    if (attention_.kind == RetrievalKind::kRecallsTokens) return std::move(list_);
    add(Operation::kUpload);
    for (uint32_t l = attention_.layers_dense; l < spec_.layers; ++l) {
      const auto layer = static_cast<uint16_t>(l);
      add(Operation::kPageScore, layer).after = {Edge::kRecalled, layer};
      add(Operation::kChoose, layer);
      add(Operation::kRecall, layer).outcome = OutcomeSlot::kPagesNow;
    }
    return std::move(list_);
  }

  StepList taking_over() {
    KVT_CHECK(attention_.kind == RetrievalKind::kRecallsPages);
    ListedOperation& move = add(Operation::kMove);
    move.part = ListPart::kRetained, move.after = {Edge::kOffloaded, 0};
    add(Operation::kUpload);
    for (uint32_t l = attention_.layers_dense; l < spec_.layers && attention_.fills; ++l)
      seal(static_cast<uint16_t>(l));
    return std::move(list_);
  }

 private:
  ListedOperation& add(Operation kind, uint16_t layer = kNoLayer) {
    return list_.add({.kind = kind, .layer = layer});
  }
  ListedOperation& background(Operation kind, uint16_t layer, StreamKind stream) {
    return list_.add({.kind = kind, .layer = layer, .stream = stream, .required = false});
  }

  void attend(uint16_t layer) {
    const ListedPrompts& prompts = spec_.prompts;
    if (!prompts.apart) return attend_rows(layer);
    if (prompts.prompts) {
      beside(prompts.prompts_aside, layer, [&] { read_all(prompts.attention, layer); });
      if (prompts.last && layer >= attention_.layers_dense)
        add(Operation::kKeepQuery, layer).part = ListPart::kLast;
    }
    if (prompts.residents) beside(prompts.residents_aside, layer, [&] { attend_rows(layer); });
  }

  // `rows`: lists what rows do that are moved aside before it, and back behind it.
  template <typename Rows>
  void beside(bool aside, uint16_t layer, const Rows& rows) {
    if (aside) add(Operation::kMove, layer).part = ListPart::kAside;
    rows();
    if (aside) add(Operation::kMove, layer).part = ListPart::kBack;
  }

  void attend_rows(uint16_t layer) {
    if (attention_.kind == RetrievalKind::kReadsAll) return read_all(attention_, layer);
    if (attention_.kind == RetrievalKind::kRecallsTokens && attention_.chooses) choose_ahead(layer + 1u);
    if (layer < attention_.layers_dense) {
      add(Operation::kAppend, layer);
      rows(attention_.dense_rows, layer);
    } else if (factored()) {
      retrieve_by_factors(layer);
    } else {
      retrieve(layer);
    }
  }

  bool factored() const {
    return attention_.kind == RetrievalKind::kRecallsValues ||
           attention_.kind == RetrievalKind::kRecallsTokens;
  }

  void read_all(const ListedAttention& attention, uint16_t layer) {
    const ListedCompression& compression = spec_.compression;
    if (compression.plans_layers) add(Operation::kPlan, layer);
    if (compression.copies) add(Operation::kMove, layer).part = ListPart::kShared;
    add(Operation::kAppend, layer);
    if (compression.chooses) add(Operation::kPageScore, layer);
    if (compression.state) add(Operation::kCapture, layer).part = ListPart::kState;
    rows(attention.rows, layer);
    if (attention.packed_decodes) add(Operation::kPackedAttention, layer);
    if (attention.keeps) add(Operation::kMove, layer);
    if (compression.probes) add(Operation::kScore, layer);
    if (compression.captures) add(Operation::kCapture, layer).part = ListPart::kQueries;
    if (compression.in_layers) {
      for (const Operation kind : {Operation::kScore, Operation::kSelect}) add(kind, layer);
      add(Operation::kMove, layer).part = ListPart::kRetained;
    }
    if (compression.wraps) add(Operation::kMove, layer).part = ListPart::kRing;
  }

  // What is ranked is sent, and, once it is known how much stays, what is selected.
  void compress() {
    for (const Operation kind :
         {Operation::kUpload, Operation::kScore, Operation::kUpload, Operation::kSelect})
      add(kind);
    if (spec_.compression.moves) add(Operation::kMove).part = ListPart::kRetained;
  }

  void rows(const AttentionRows& rows, uint16_t layer) {
    for (const Operation kernel : kAttentionKernels) {
      if (has_rows(rows, kernel)) add(kernel, layer);
    }
  }

  // Edges of docs/design/methods/freekv.md#recall.
  void retrieve(uint16_t layer) {
    const bool on_host = recalls(attention_.kind);
    const bool speculation = speculates(attention_.kind, attention_.speculation),
               ahead = speculation && attention_.chooses;
    ListedOperation& append = add(Operation::kAppend, layer);
    if (speculation) append.after = {Edge::kRecalled, layer};
    if (attention_.fills) seal(layer);
    if (ahead) add(Operation::kCompare, layer);
    if (speculation) {
      ListedOperation& keep = add(Operation::kKeepQuery, layer);
      if (ahead) keep.records = {Edge::kQueried, layer};
    }
    if (attention_.chooses) {
      add(Operation::kPageScore, layer);
      add(Operation::kChoose, layer);
      if (on_host) add(Operation::kRecall, layer).outcome = OutcomeSlot::kPagesNow;
    }
    rows(attention_.rows, layer);
    if (on_host && !speculation) add(Operation::kKeepQuery, layer);
    if (ahead) {
      list_.last_on(StreamKind::kCompute)->records = {Edge::kAttended, layer};
      choose_next(layer);
    }
    if (on_host && attention_.chooses && layer + 1u == spec_.layers)
      list_.add({.kind = Operation::kCounts,
                 .layer = layer,
                 .stream = ahead ? StreamKind::kSelect : StreamKind::kCompute,
                 .required = !ahead});
  }

  // Pages for the next step. They are scored beside attention, and chosen and recalled behind it, because it
  // reads the slots.
  void choose_next(uint16_t layer) {
    background(Operation::kPageScore, layer, StreamKind::kSelect).after = {Edge::kQueried, layer};
    ListedOperation& choose = background(Operation::kChoose, layer, StreamKind::kSelect);
    choose.after = {Edge::kAttended, layer}, choose.records = {Edge::kChosen, layer};
    ListedOperation& next = background(Operation::kRecall, layer, StreamKind::kRecall);
    next.outcome = OutcomeSlot::kPagesNext;
    next.after = {Edge::kChosen, layer}, next.records = {Edge::kRecalled, layer};
  }

  // ShadowKV and InfiniGen. Attention waits for what is recalled on a stream of its own: the values of chosen
  // pages, while their keys are rebuilt; or the tokens that were chosen in the layer before.
  void retrieve_by_factors(uint16_t layer) {
    const bool values = attention_.kind == RetrievalKind::kRecallsValues;
    add(Operation::kAppend, layer);
    if (attention_.fetches_rows) add(Operation::kFetchRows, layer);
    if (attention_.fills) seal(layer);
    if (attention_.projects_keys) add(Operation::kProject, layer);
    if (values && attention_.chooses) {
      choose_now(layer);
      add(Operation::kRebuild, layer);
    }
    if (values) add(Operation::kKeepQuery, layer);
    const size_t before = list_.operations().size();
    rows(attention_.rows, layer);
    if (!values && attention_.chooses) add(Operation::kTokenAttention, layer);
    if (attention_.chooses) {
      const size_t waits = values ? before : list_.operations().size() - 1;
      KVT_CHECK(waits < list_.operations().size());
      list_.at(waits).after = {Edge::kRecalled, layer};
    }
    if (attention_.chooses && layer + 1u == spec_.layers) add(Operation::kCounts, layer);
  }

  // InfiniGen: for the next layer, from the input of the layer at hand.
  void choose_ahead(uint32_t next) {
    if (next < attention_.layers_dense || next >= spec_.layers) return;
    const auto layer = static_cast<uint16_t>(next);
    add(Operation::kProject, layer).part = ListPart::kQueries;
    choose_now(layer);
  }

  // For this step, with a recall that runs beside what follows.
  void choose_now(uint16_t layer) {
    add(Operation::kPageScore, layer);
    add(Operation::kChoose, layer).records = {Edge::kChosen, layer};
    ListedOperation& recall = add(Operation::kRecall, layer);
    recall.stream = StreamKind::kRecall, recall.outcome = OutcomeSlot::kPagesNow;
    recall.after = {Edge::kChosen, layer}, recall.records = {Edge::kRecalled, layer};
  }

  // InfiniGen has no summaries.
  void seal(uint16_t layer) {
    if (attention_.kind != RetrievalKind::kRecallsTokens) add(Operation::kSummarise, layer);
    if (!recalls(attention_.kind)) return;
    list_.last_on(StreamKind::kCompute)->records = {Edge::kSealed, layer};
    ListedOperation& offload = background(Operation::kOffload, layer, StreamKind::kOffload);
    offload.after = {Edge::kSealed, layer};
    if (layer + 1u == spec_.layers) offload.records = {Edge::kOffloaded, 0};
  }

  const StepListSpec& spec_;
  const ListedAttention& attention_;
  StepList list_;
};

std::string of_layer(uint16_t layer) { return layer == kNoLayer ? "" : "[" + std::to_string(layer) + "]"; }

std::string event_text(const char* verb, const StepEvent& event) {
  if (!event) return "";
  return std::string(" ") + verb + " " + kEdgeNames[static_cast<size_t>(event.edge)] + of_layer(event.layer);
}

}  // namespace

const char* name_of(Operation operation) { return kOperationNames[static_cast<size_t>(operation)]; }
const char* name_of(StreamKind stream) { return kStreamNames[static_cast<size_t>(stream)]; }

ListedOperation* StepList::last_on(StreamKind stream) {
  const auto found = std::find_if(operations_.rbegin(), operations_.rend(),
                                  [&](const ListedOperation& one) { return one.stream == stream; });
  return found == operations_.rend() ? nullptr : &*found;
}

std::string StepList::text() const {
  std::string out;
  for (const ListedOperation& one : operations_) {
    out += std::string(name_of(one.stream)) + ": " + name_of(one.kind) + of_layer(one.layer);
    out += event_text("after", one.after) + event_text("records", one.records) + "\n";
  }
  return out;
}

StepList list_step(const StepListSpec& spec) { return Lister(spec).step(); }

StepList list_attention(const StepListSpec& spec, uint32_t layer) {
  return Lister(spec).attention(static_cast<uint16_t>(layer));
}

StepList list_compression(bool moves) {
  StepListSpec spec;
  spec.compression.moves = moves;
  return Lister(spec).compression();
}

StepList list_entering(const StepListSpec& spec) { return Lister(spec).entering(); }
StepList list_taking_over(const StepListSpec& spec) { return Lister(spec).taking_over(); }

bool is_attention(const ListedOperation& operation) {
  switch (operation.kind) {
    case Operation::kNorm:
    case Operation::kQkv:
    case Operation::kAttentionOut:
    case Operation::kGateUp:
    case Operation::kActivation:
    case Operation::kDown:
    case Operation::kRequantise:
      return false;
    default:
      return operation.layer != kNoLayer;
  }
}

}  // namespace kvtwin
