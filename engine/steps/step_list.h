// StepList: the operations of one step in the order in which the CUDA engine starts them, each on its stream
// and after its event (docs/design/step-graph-and-prices.md#step-list). list_step() is the one definition:
// the engine walks the list, and the simulator's step graphs price its operations.
//
// Operations of one stream run in the order of the list. Streams meet at events: an operation waits for at
// most one before it starts, and at most one is recorded behind it. An event that no earlier operation of the
// list records is that of an earlier step.

#ifndef KVTWIN_ENGINE_STEPS_STEP_LIST_H_
#define KVTWIN_ENGINE_STEPS_STEP_LIST_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/methods/retrieval_spec.h"

namespace kvtwin {

constexpr uint16_t kNoLayer = UINT16_MAX;

// What an operation does. Each kind is one kernel family or one kind of copy.
enum class Operation : uint8_t {
  kUpload,           // copies work lists to the GPU
  kEmbed,            // token ids to the residual stream
  kNorm,             // RMS norm, of the product that follows
  kQkv,              // matrix products, by their results
  kAppend,           // rotation; keys and values into pages
  kPlan,             // of decode attention
  kDecodeAttention,  // rows that attention_decode takes
  kChunkAttention,   // chunks that attention_prefill takes
  kRowAttention,     // all other rows
  kAttentionOut,
  kGateUp,
  kActivation,
  kDown,
  kLogits,
  kSample,     // argmax, and the tokens to the host
  kCapture,    // what a scorer needs later, while tokens are computed
  kScore,      // KV entries
  kSelect,     // KV entries that are retained
  kMove,       // KV entries on the GPU, to where they stay
  kSummarise,  // pages that the step completes
  kCompare,    // queries with those of the step before: which heads choose pages for this step
  kPageScore,
  kChoose,           // pages: top-k, and the moves that follow
  kRecall,           // pages from the host
  kKeepQuery,        // for the choice of the next step
  kCounts,           // of recalled pages, to the host
  kOffload,          // completed pages, to the host
  kRequantise,       // KV entries, to fewer bits
  kPackedAttention,  // decodes that read packed pages as they are
  kFetchRows,        // a step's queries and keys, to the host, which makes factors of them
  kProject,          // queries or keys, onto directions
  kRebuild,          // keys of what is read, from their factors
  kTokenAttention,   // decodes that read chosen tokens
};
constexpr size_t kOperations = 33;
const char* name_of(Operation operation);

enum class StreamKind : uint32_t { kCompute, kRecall, kOffload, kSelect };
constexpr size_t kStreamKinds = 4;
const char* name_of(StreamKind stream);

// Events between streams, one per layer (kOffloaded: one).
enum class Edge : uint32_t {
  kAttended,   // attention of the layer has read its slots
  kRecalled,   // the layer's recall has written them: for the next step, or values or tokens for this one
  kSealed,     // the layer's completed pages are written and summarised
  kOffloaded,  // the completed pages of all layers are on the host
  kQueried,    // the layer's queries are stored, and which heads choose for the next step is known
  kChosen,     // what that recall moves is chosen
  kNone,
};
constexpr uint32_t kEdges = 6;

struct StepEvent {
  Edge edge = Edge::kNone;
  uint16_t layer = 0;
  explicit operator bool() const { return edge != Edge::kNone; }
  friend bool operator==(const StepEvent&, const StepEvent&) = default;
};

// What the data decides about an operation that is always started: how many pages of one KV head it moves.
enum class OutcomeSlot : uint8_t { kNone, kPagesNow, kPagesNext };

// Which lists or rows of the step an operation takes, where a layer has several operations of its kind.
enum class ListPart : uint8_t {
  kOnly,
  kState,     // captured: what belongs to new KV entries
  kQueries,   // captured: queries, or what they attend to; projected: queries for the next layer
  kShared,    // moved: KV entries that share a page with staged rows
  kRetained,  // moved: what a compression has selected
  kRing,      // moved: new KV entries into a ring, once nothing reads what they overwrite
  kAside,     // moved: rows of a part of the step that do not follow one another, to where they do
  kBack,      // moved: what attention gave for these rows
  kLast,      // kept: queries of the last rows of prompts
};

struct ListedOperation {
  Operation kind{};
  uint16_t layer = kNoLayer;
  StreamKind stream = StreamKind::kCompute;
  bool required = true;  // the step's tokens wait for it; else background
  OutcomeSlot outcome = OutcomeSlot::kNone;
  ListPart part = ListPart::kOnly;
  StepEvent after{};    // that it waits for
  StepEvent records{};  // that is recorded behind it
  friend bool operator==(const ListedOperation&, const ListedOperation&) = default;
};

// Kinds of rows that attention reads for (engine/cuda/row_attention.h).
struct AttentionRows {
  bool decodes = false, chunks = false, others = false;
  friend bool operator==(const AttentionRows&, const AttentionRows&) = default;
};

// The kernels of attention in the order in which a layer starts them, and whether one has rows.
constexpr Operation kAttentionKernels[] = {Operation::kDecodeAttention, Operation::kChunkAttention,
                                           Operation::kRowAttention};
constexpr bool has_rows(const AttentionRows& rows, Operation kernel) {
  return kernel == Operation::kDecodeAttention  ? rows.decodes
         : kernel == Operation::kChunkAttention ? rows.chunks
                                                : rows.others;
}

// What the operations between a layer's first and its last matrix products of attention depend on.
struct ListedAttention {
  AttentionRows rows{};        // of layers that choose pages; without retrieval, of all layers
  AttentionRows dense_rows{};  // of the first layers_dense layers
  uint32_t layers_dense = 0;
  RetrievalKind kind = RetrievalKind::kReadsAll;
  bool speculation = false;
  bool chooses = false;         // some request chooses pages or tokens
  bool fills = false;           // some page is completed
  bool fetches_rows = false;    // to the host
  bool projects_keys = false;   // of rows behind prompts (kRecallsTokens)
  uint32_t uploads = 1;         // copies of work lists
  bool packed_decodes = false;  // decodes read packed pages as they are
  bool keeps = false;           // KV entries that are packed later are kept beside the pages
  bool requantises = false;     // KV entries that age
  friend bool operator==(const ListedAttention&, const ListedAttention&) = default;
};

// What a budget that drops KV entries adds to a step.
struct ListedCompression {
  bool plans_layers = false;  // every layer plans attention of its own
  bool copies = false;        // KV entries that share a page with staged rows, before the append
  bool state = false;         // of new KV entries: captured with their append
  bool chooses = false;       // decodes choose among pages of what is left
  bool captures = false;      // queries, or attention scores, behind attention
  bool probes = false;        // a pass of probe rows: what they attend to is scored
  bool in_layers = false;     // in each layer, behind its attention; REQUIRES: retained counts are known
  bool wraps = false;         // chunks go over the end of a ring
  uint32_t before = 0;        // compressions before the rows, one after the other
  uint32_t behind = 0;        // and behind the last layer
  bool moves = true;          // these move retained KV entries; else they stay where they are
  friend bool operator==(const ListedCompression&, const ListedCompression&) = default;
};

// Prompts under a budget, beside requests that choose pages of what it retained: each of the two parts of a
// step has rows and operations of its own, prompts first. `compression` is that of prompts.
struct ListedPrompts {
  bool apart = false;            // false: there are no such parts
  bool prompts = false;          // there are rows of prompts
  bool residents = false;        // there are other rows; StepListSpec::attention is theirs
  bool prompts_aside = false;    // these rows are moved aside
  bool residents_aside = false;  // the same
  bool last = false;             // some prompt ends: its last query is kept
  ListedAttention attention{};   // of prompts
  friend bool operator==(const ListedPrompts&, const ListedPrompts&) = default;
};

struct StepListSpec {
  uint32_t layers = 1;
  bool samples = true;
  ListedAttention attention{};
  ListedCompression compression{};
  ListedPrompts prompts{};
  friend bool operator==(const StepListSpec&, const StepListSpec&) = default;
};

class StepList {
 public:
  void clear() { operations_.clear(); }
  void reserve(size_t operations) { operations_.reserve(operations); }
  ListedOperation& add(const ListedOperation& operation) { return operations_.emplace_back(operation); }
  std::span<const ListedOperation> operations() const { return operations_; }
  ListedOperation& at(size_t operation) { return operations_[operation]; }
  ListedOperation* last_on(StreamKind stream);  // null: none
  // One line for each operation: its stream, its name with the layer, and its events.
  std::string text() const;
  friend bool operator==(const StepList&, const StepList&) = default;

 private:
  std::vector<ListedOperation> operations_;
};

// REQUIRES: 1 <= layers < kNoLayer, layers_dense <= layers.
StepList list_step(const StepListSpec& spec);
// The part of it from a layer's append to its last operation before the output product.
StepList list_attention(const StepListSpec& spec, uint32_t layer);
// One compression of all layers, before or behind them.
StepList list_compression(bool moves);
// What follows a step in which prompts end whose pages leave the GPU for resident pages: their slots are
// filled. REQUIRES: something is recalled.
StepList list_entering(const StepListSpec& spec);
// What precedes that where a budget has dropped KV entries of these prompts: what is left moves to pages of
// its own, and those that it fills go to the host. REQUIRES: pages are recalled.
StepList list_taking_over(const StepListSpec& spec);
// Whether list_attention() lists it.
bool is_attention(const ListedOperation& operation);

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_STEPS_STEP_LIST_H_
