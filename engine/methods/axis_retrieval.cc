// The retrieval methods and what they need. The rest of the policy side is integers: retrieval_spec.h.

#include "engine/methods/axis_factories.h"
#include "engine/methods/axis_rows.h"

namespace kvtwin {
namespace {

struct RetrievalRow {
  PolicyInfo info;
  RetrievalTraits traits;
  void (*set_defaults)(RetrievalSpec* spec) = nullptr;
  RecallCopies copies{};
};

// Quest with grouped queries as FreeKV's authors run it.
void set_quest_defaults(RetrievalSpec* spec) {
  spec->layers_dense = 2;
  spec->pooling = GroupPooling::kMaxQk;
  spec->scale = ScoreScale::kOne;
  spec->sink_tokens = 0;
  spec->window_tokens = 32;
  spec->speculation = false;
}

void set_arkvale_defaults(RetrievalSpec* spec) {
  spec->pooling = GroupPooling::kMeanQk;
  spec->summary = PageSummary::kCuboid;
  spec->scale = ScoreScale::kOne;
  spec->speculation = false;
}

void set_shadowkv_defaults(RetrievalSpec* spec) {
  spec->pooling = GroupPooling::kMaxS;
  spec->summary = PageSummary::kMean;
  spec->sink_tokens = 0;
  spec->window_tokens = 128;         // 4 local chunks
  spec->extra_tokens = 48 * 32;      // outlier chunks
  spec->budget_tokens = 2048 + 128;  // local chunks are read in addition to the selected ones
  spec->speculation = false;
}

void set_infinigen_defaults(RetrievalSpec* spec) {
  spec->layers_dense = 1;
  spec->pooling = GroupPooling::kMeanQk;
  spec->sink_tokens = 0;
  spec->window_tokens = 32;
  spec->speculation = false;
}

constexpr RetrievalRow kRetrievals[] = {
    {{"retrieval", "all", "A step reads every live page."}, {}},
    {{"retrieval", "quest",
      "Reads the pages whose min-max summary bounds the query highest. All pages stay on the gpu; the first "
      "two layers read everything."},
     {.kind = RetrievalKind::kPagesOnGpu},
     set_quest_defaults},
    {{"retrieval", "arkvale",
      "As Quest, with cuboid summaries and pages on the host: what is chosen and absent is recalled before "
      "attention, in pieces of one token and head (NHD), one thing after another."},
     {.kind = RetrievalKind::kRecallsPages},
     set_arkvale_defaults,
     {HostPageLayout::kNhd, HostCopy::kKernel, 1}},
    {{"retrieval", "shadowkv",
      "Keys stay on the gpu as low-rank factors and are rebuilt for the chosen pages while their values are "
      "recalled; outlier and local pages stay."},
     {.kind = RetrievalKind::kRecallsValues},
     set_shadowkv_defaults},
    {{"retrieval", "infinigen",
      "During layer l the tokens of layer l+1 are chosen from partial keys and recalled one by one; nothing "
      "chosen is kept for the next step."},
     {.kind = RetrievalKind::kRecallsTokens},
     set_infinigen_defaults},
    {{"retrieval", "freekv",
      "Pages for the next step are chosen and recalled in the background with this step's query; heads whose "
      "query has turned (cosine below tau) are chosen again and recalled before attention."},
     {.kind = RetrievalKind::kRecallsPages, .may_speculate = true},
     nullptr,
     {HostPageLayout::kHnd, HostCopy::kKernel, 2}},
};

}  // namespace

RetrievalSpec retrieval_defaults(std::string_view name) {
  const RetrievalRow& row = row_of(kRetrievals, name);
  RetrievalSpec spec;
  if (row.set_defaults != nullptr) row.set_defaults(&spec);
  return spec;
}

RecallCopies recall_copies(std::string_view name) { return row_of(kRetrievals, name).copies; }

std::string retrievals_of(RetrievalKind kind) {
  std::string out;
  for (const RetrievalRow& row : kRetrievals) {
    if (row.traits.kind == kind) out += (out.empty() ? "" : " or ") + std::string(row.info.name);
  }
  return out;
}

void append_retrievals(std::vector<PolicyInfo>* out) { append_rows(kRetrievals, out); }
RetrievalTraits retrieval_traits(std::string_view name) { return row_of(kRetrievals, name).traits; }

}  // namespace kvtwin
