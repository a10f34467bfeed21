// ServerCost: the step times of one real server. It scales three parts of a base model's price and adds host
// time:
//
//   step = host_step + host_request * requests + weights * W + kv * K + prefill * P
//
//   W   the base price of the step's decodes with empty contexts; without decodes, of one token
//   K   what reading the contexts of the decodes adds to it
//   P   what the prompts add to both
//
// The base model supplies the form (rooflines or kernel tables, formats, tensor parallelism), the server's
// log the six figures, so that another batch, context or KV format is extrapolated by the base model's laws.

#ifndef KVTWIN_MODELS_SERVING_SERVER_COST_H_
#define KVTWIN_MODELS_SERVING_SERVER_COST_H_

#include <memory>
#include <vector>

#include "models/cost/cost_on_top.h"
#include "models/serving/server_profile.h"

namespace kvtwin {

class ServerCost final : public CostOnTop {
 public:
  // REQUIRES: `base` is not null; the times are not negative.
  ServerCost(const ServerTimes& times, std::unique_ptr<CostModel> base);

  StepCost step(const StepShape& shape) override;
  StepRange range(const StepShape& shape) override;
  // The base model's operations, each scaled by the ratio of both steps.
  std::vector<StepPart> ops(const StepShape& shape) override;

 private:
  // The device time of `shape`, of which the base model's price is `whole`.
  Ticks scaled(const StepShape& shape, Ticks whole);

  const ServerTimes times_;
};

}  // namespace kvtwin

#endif  // KVTWIN_MODELS_SERVING_SERVER_COST_H_
