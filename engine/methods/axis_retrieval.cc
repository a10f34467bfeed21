// The retrieval methods and what they need. The rest of the policy side is integers: retrieval_spec.h.

#include "engine/methods/axis_factories.h"
#include "engine/methods/axis_rows.h"

namespace kvtwin {
namespace {

struct RetrievalRow {
  PolicyInfo info;
  RetrievalTraits traits;
};

constexpr RetrievalRow kRetrievals[] = {
    {{"retrieval", "all", "A step reads every live page."}, {}},
    {{"retrieval", "quest",
      "Reads the pages whose min-max summary bounds the query highest. All pages stay on the gpu; the first "
      "two layers read everything."},
     {.method = RetrievalMethod::kQuest}},
    {{"retrieval", "arkvale",
      "As Quest, with cuboid summaries and pages on the host: what is chosen and absent is recalled before "
      "attention, in pieces of one token and head (NHD), one thing after another."},
     {.method = RetrievalMethod::kArkvale, .needs_resident = true}},
    {{"retrieval", "shadowkv",
      "Keys stay on the gpu as low-rank factors and are rebuilt for the chosen pages while their values are "
      "recalled; outlier and local pages stay."},
     {.method = RetrievalMethod::kShadowkv, .needs_resident = true, .joins_heads = true}},
    {{"retrieval", "infinigen",
      "During layer l the tokens of layer l+1 are chosen from partial keys and recalled one by one; nothing "
      "chosen is kept for the next step."},
     {.method = RetrievalMethod::kInfinigen, .needs_resident = true, .learns_columns = true}},
    {{"retrieval", "freekv",
      "Pages for the next step are chosen and recalled in the background with this step's query; heads whose "
      "query has turned (cosine below tau) are chosen again and recalled before attention."},
     {.method = RetrievalMethod::kFreekv, .needs_resident = true}},
};

class TableRetrieval final : public Retrieval {
 public:
  explicit TableRetrieval(const RetrievalTraits& traits) : traits_(traits) {}
  bool reads_everything() const override { return traits_.reads_everything(); }
  bool needs_resident() const override { return traits_.needs_resident; }
  RetrievalMethod method() const override { return traits_.method; }

 private:
  const RetrievalTraits traits_;
};

}  // namespace

std::unique_ptr<Retrieval> make_retrieval(std::string_view name) {
  return std::make_unique<TableRetrieval>(retrieval_traits(name));
}

void append_retrievals(std::vector<PolicyInfo>* out) { append_rows(kRetrievals, out); }
RetrievalTraits retrieval_traits(std::string_view name) { return row_of(kRetrievals, name).traits; }

}  // namespace kvtwin
