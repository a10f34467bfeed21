#include "engine/methods/axis_factories.h"

namespace kvtwin {
namespace {

class Planned final : public Partition {
 public:
  explicit Planned(PartitionKind kind) : kind_(kind) {}
  PartitionKind kind() const override { return kind_; }

 private:
  const PartitionKind kind_;
};

}  // namespace

std::unique_ptr<Partition> make_partition(std::string_view name) {
  if (name == "uniform") return std::make_unique<Planned>(PartitionKind::kUniform);
  if (name == "flash_decoding") return std::make_unique<Planned>(PartitionKind::kFlashDecoding);
  if (name == "flashinfer") return std::make_unique<Planned>(PartitionKind::kFlashInfer);
  if (name == "stream_k") return std::make_unique<Planned>(PartitionKind::kStreamK);
  if (name == "aot") return std::make_unique<Planned>(PartitionKind::kAotFractions);
  return nullptr;
}

}  // namespace kvtwin
