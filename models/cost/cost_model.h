// CostModel computes how long one step of one engine takes on one device, and how certain that is.
//
// Times are integers in 1/1024 ns, so that sums over many steps stay exact and coalesced steps end at the
// same instants as single ones (docs/design/step-graph-and-prices.md#step-graph). Only the models use
// doubles.

#ifndef KVTWIN_MODELS_COST_COST_MODEL_H_
#define KVTWIN_MODELS_COST_COST_MODEL_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

namespace kvtwin {

// 1/1024 ns. Rounded to ns only when an instant is read.
using Ticks = int64_t;
constexpr Ticks kTicksPerNs = 1024;

// One prompt's part of a step: `tokens` are computed while `context` earlier ones are readable.
struct ChunkShape {
  uint32_t tokens = 0;
  uint32_t context = 0;
  // Of the context, entries in the low-bit one of two KV formats (LlmSpec::kv_low_bit).
  uint32_t low_bit = 0;
  // The context has dropped slots: its entries are read one by one from lists (lists_entries()).
  bool listed = false;
};

// A pass of probe tokens, after the step's other tokens (ProbePass in engine/base/commands.h).
struct PassShape {
  uint32_t tokens = 0;
  uint32_t context = 0;  // KV entries that they read, of a mean head
};

// The compression of one request at the end of a step (Compression in engine/base/commands.h). KV entries are
// those of a mean head.
struct CompressionShape {
  static constexpr uint32_t kUnknown = UINT32_MAX;
  uint32_t tokens = 0;           // of the request, dropped or not
  uint32_t held = 0;             // KV entries before it
  uint32_t ranked = 0;           // of these, entries that are scored, forced ones included
  uint32_t retained = kUnknown;  // of the ranked ones, forced ones included; kUnknown: the data decides
  uint32_t turn = 1;             // of its session, counted from 1
};

// What an engine that replays decode steps as graphs does with one (graph_shapes.h): it launches it kernel by
// kernel and nothing else, the first time; captures its graph; instantiates it; or replays it.
enum class GraphUse : uint8_t { kNew, kCaptured, kInstantiated, kReplayed };

// In permille: prompts are computed all the time.
constexpr uint32_t kSustainedLoad = 1000;

// No prompts have been computed.
constexpr uint32_t kCalm = UINT32_MAX;

// What the device computes in one step: everything that its duration may depend on.
struct StepShape {
  uint32_t decodes = 0;             // requests that decode one token
  uint64_t decode_context_sum = 0;  // tokens that they read, in total, without the new ones
  uint32_t decode_context_max = 0;  // tokens that the longest of them reads
  uint64_t decode_low_bit_sum = 0;  // of decode_context_sum, entries in the low-bit one of two KV formats
  // Decodes whose KV entries no kernel can read in place (sim/clock/step_shape.cc), and the tokens that they
  // read.
  uint32_t decodes_unpacked = 0;
  uint64_t unpacked_context_sum = 0;
  // Decodes of requests with dropped slots, whose KV entries are read one by one from lists
  // (lists_entries()).
  uint32_t listed_decodes = 0;
  uint64_t requantised = 0;  // tokens whose KV entries are requantised from `kv` to `kv_low_bit`
  // Pages of one head group that are copied first: tails of prefix checkpoints.
  uint64_t copied_pages = 0;
  std::span<const ChunkShape> chunks;
  uint32_t tokens = 0;                  // computed: decodes + sum of chunk tokens; 0: passes alone
  uint32_t tokens_padded = 0;           // tokens that dense kernels run on
  uint32_t logits_rows = 0;             // tokens that sample
  std::span<const PassShape> passes{};  // after its layers, one after the other
  std::span<const CompressionShape> compressions{};  // after its attention
  // Of CostModel::load_window() before this step, the permille that was spent on prompts (recent_load.h).
  uint32_t chunk_load = kSustainedLoad;
  uint32_t busy_ms = 0;  // time since prompts were first computed without a pause of forgets_after()
  // Time since the last step that computed prompts ended, and busy_ms at its end.
  uint32_t calm_ms = kCalm, busy_before_ms = 0;
  // Requests that choose the pages that they read (docs/design/methods/freekv.md), and whose part of
  // decode_context_sum is what they read: their number, and the pages that they choose from. pages_filled:
  // pages of 16 tokens that the step completes, where they are stored elsewhere too.
  uint32_t choosing = 0;
  uint64_t chosen_from = 0;
  uint64_t pages_filled = 0;
  GraphUse graph = GraphUse::kReplayed;
  bool launched() const { return graph < GraphUse::kReplayed; }  // kernel by kernel
};

// The source of a prediction, worst first where several contribute.
enum class Evidence : uint8_t { kExtrapolated, kRoofline, kInterpolated, kMeasured };
constexpr int kEvidenceKinds = 4;
constexpr const char* name_of(Evidence evidence) {
  constexpr const char* kNames[kEvidenceKinds] = {"extrapolated", "roofline", "interpolated", "measured"};
  return kNames[static_cast<size_t>(evidence)];
}

// What scorers add to a step (compression_cost.h).
enum class CompressionPart : uint8_t { kCapture, kProbe, kScore, kSelect, kMove, kBookkeeping };
constexpr size_t kCompressionParts = 6;
using CompressionTicks = std::array<Ticks, kCompressionParts>;
inline Ticks sum_of(const CompressionTicks& parts) {
  return std::accumulate(parts.begin(), parts.end(), Ticks{0});
}

// How many quarters of their time attention and what methods add load the GPU. Matrix products load it in
// full.
struct LoadQuarters {
  int attention = 4, added = 4;
};

struct StepCost {
  Ticks device = 0;  // the device computes
  Ticks host = 0;    // the device waits for the host, when only one step may be in flight
  // Least duration of the step, whatever it computes: the time that the host is busy with it.
  Ticks least = 0;
  // Ticks of `device` by evidence; they sum to `device`.
  std::array<Ticks, kEvidenceKinds> by_evidence{};
  CompressionTicks compression{};  // of `device`, by CompressionPart
  Ticks attention = 0;             // of `device`; 0 also where a model does not know its parts
  // Of `device`: what methods add to the model's own operations.
  Ticks added() const { return sum_of(compression); }
};

// What a part of a step is, for reports and for engine/steps/step_graph.
enum class PartKind : uint8_t {
  kEmbedding,
  kNorm,
  kGemm,
  kRope,
  kAttention,
  kRouter,
  kActivation,
  kAllReduce,
  kLmHead,
  kSample,
  kHost,     // the device waits: work lists are made and uploaded, tokens are downloaded
  kCapture,  // from here on as in CompressionPart
  kProbe,
  kScore,
  kSelect,
  kMove,
  kBookkeeping
};
constexpr bool is_compression(PartKind kind) { return kind >= PartKind::kCapture; }
constexpr CompressionPart compression_part(PartKind kind) {
  return static_cast<CompressionPart>(static_cast<uint8_t>(kind) - static_cast<uint8_t>(PartKind::kCapture));
}
static_assert(compression_part(PartKind::kBookkeeping) == CompressionPart::kBookkeeping);
enum class PartPlace : uint8_t { kBefore, kLayer, kAfter };  // before, in or after the layers

// One operation of a step. `times`: how often it runs in the whole step, over all layers.
struct StepPart {
  const char* name = "";
  PartKind kind = PartKind::kGemm;
  PartPlace place = PartPlace::kLayer;
  uint32_t times = 1;
  Ticks each = 0;
  Evidence evidence = Evidence::kRoofline;
};

// The range that contains a step's time in nine of ten cases, as far as the model knows.
struct StepRange {
  Ticks low = 0, high = 0;
};

class CostModel {
 public:
  virtual ~CostModel() = default;
  // Deterministic; not monotone in anything, because tables are measured. Not thread-safe (models may
  // memoise).
  virtual StepCost step(const StepShape& shape) = 0;
  // What RecentLoad counts a step's operations as.
  virtual LoadQuarters load_quarters() const { return {}; }
  // The period before a step that StepShape::chunk_load is about; 0: it does not matter.
  virtual Ticks load_window() const { return 0; }
  // A pause after which StepShape::busy_ms begins anew; 0: it does not matter.
  virtual Ticks forgets_after() const { return 0; }
  // The number of graphs of decode steps that the engine holds; 0: StepShape::graph does not matter.
  virtual uint32_t graphs_kept() const { return 0; }
  // The same step operation by operation, in running order: times * each sums to step().device exactly. Slow;
  // empty if the model does not know its parts.
  virtual std::vector<StepPart> ops(const StepShape&) { return {}; }
  // Around step().device, from the spread of measurements. Models without a spread return that alone.
  virtual StepRange range(const StepShape& shape) {
    const Ticks device = step(shape).device;
    return {device, device};
  }
};

}  // namespace kvtwin

#endif  // KVTWIN_MODELS_COST_COST_MODEL_H_
