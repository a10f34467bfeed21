// CostOnTop is a cost model that adds to the prices of another one and has the same parameters of a step's
// plan.

#ifndef KVTWIN_MODELS_COST_COST_ON_TOP_H_
#define KVTWIN_MODELS_COST_COST_ON_TOP_H_

#include <memory>
#include <utility>

#include "engine/base/check.h"
#include "models/cost/cost_model.h"

namespace kvtwin {

class CostOnTop : public CostModel {
 public:
  Ticks load_window() const final { return below_->load_window(); }
  LoadQuarters load_quarters() const final { return below_->load_quarters(); }
  Ticks forgets_after() const final { return below_->forgets_after(); }
  uint32_t graphs_kept() const final { return below_->graphs_kept(); }

 protected:
  // REQUIRES: `below` is not null.
  explicit CostOnTop(std::unique_ptr<CostModel> below) : below_(std::move(below)) {
    KVT_CHECK(below_ != nullptr);
  }
  CostModel& below() { return *below_; }

 private:
  const std::unique_ptr<CostModel> below_;
};

}  // namespace kvtwin

#endif  // KVTWIN_MODELS_COST_COST_ON_TOP_H_
