// The retrieval methods and what they need. The rest of the policy side is integers: retrieval_spec.h.

#include "engine/methods/axis_factories.h"

namespace kvtwin {
namespace {

class Named final : public Retrieval {
 public:
  explicit Named(RetrievalMethod method) : method_(method) {}
  bool reads_everything() const override { return method_ == RetrievalMethod::kAll; }
  bool needs_resident() const override { return !reads_everything() && method_ != RetrievalMethod::kQuest; }
  RetrievalMethod method() const override { return method_; }

 private:
  const RetrievalMethod method_;
};

template <RetrievalMethod kMethod>
std::unique_ptr<Retrieval> make() {
  return std::make_unique<Named>(kMethod);
}

}  // namespace

std::unique_ptr<Retrieval> make_retrieval_all() { return make<RetrievalMethod::kAll>(); }
std::unique_ptr<Retrieval> make_retrieval_quest() { return make<RetrievalMethod::kQuest>(); }
std::unique_ptr<Retrieval> make_retrieval_arkvale() { return make<RetrievalMethod::kArkvale>(); }
std::unique_ptr<Retrieval> make_retrieval_shadowkv() { return make<RetrievalMethod::kShadowkv>(); }
std::unique_ptr<Retrieval> make_retrieval_infinigen() { return make<RetrievalMethod::kInfinigen>(); }
std::unique_ptr<Retrieval> make_retrieval_freekv() { return make<RetrievalMethod::kFreekv>(); }

}  // namespace kvtwin
