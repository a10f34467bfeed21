// make_cost_model(): measured tables where a profile is given, the roofline otherwise.

#ifndef KVTWIN_MODELS_COST_TABLES_COST_FACTORY_H_
#define KVTWIN_MODELS_COST_TABLES_COST_FACTORY_H_

#include <memory>
#include <string>
#include <vector>

#include "engine/base/result.h"
#include "models/catalog/device.h"
#include "models/catalog/llm.h"
#include "models/cost/cost_model.h"
#include "models/cost/graph_shapes.h"
#include "models/cost/host_time.h"
#include "models/cost_tables/measured_device.h"

namespace kvtwin {

struct CostModelSpec {
  LlmSpec llm;
  DeviceSpec device;
  uint32_t tp = 1;
  HostTime host;
  // Folder with meta.yaml (cost_tables.h), or .textproto (measured_device.h); empty: roofline.
  std::string profile;
  DecodeGraphs graphs = DecodeGraphs::kPrepared;  // of our engine (MeasuredCost)
  std::string precision{};                        // format of KV, if not the model's (MeasuredCost)
  const MeasuredDevice* measured = nullptr;       // the contents of such a .textproto, if already read
};

// Adds sentences that a reader of prices must know to `notes`, if it is not null.
Result<std::unique_ptr<CostModel>> make_cost_model(const CostModelSpec& spec,
                                                   std::vector<std::string>* notes = nullptr);

}  // namespace kvtwin

#endif  // KVTWIN_MODELS_COST_TABLES_COST_FACTORY_H_
