// DeviceSpec and NodeSpec: the rates and sizes of a GPU and of the machine around it, each with its source.
// traces/proto/model.proto documents the fields.

#ifndef KVTWIN_MODELS_CATALOG_DEVICE_H_
#define KVTWIN_MODELS_CATALOG_DEVICE_H_

#include <cstdint>
#include <string>
#include <vector>

namespace kvtwin {

enum class Basis : uint8_t { kAbsent, kDatasheet, kMeasured, kDerived, kAssumed };
const char* name_of(Basis basis);

struct Figure {
  double value = 0;
  Basis basis = Basis::kAbsent;
  std::string source;

  bool present() const { return basis != Basis::kAbsent; }
};

// An all-reduce as measured with `gpus` GPUs; models/cost/all_reduce.h gives the formula.
struct AllReduceFigures {
  uint32_t gpus = 0;
  Figure fixed_ns, bytes_per_s;
};

// Rates are of dense arithmetic. The fractions (0 to 1) are what kernels reach of a rate; the *_fixed_ns are
// the fixed times of kernels, added to the rest.
struct DeviceSpec {
  std::string name, title;
  Figure hbm_bytes, hbm_bytes_per_s, bf16_flop_per_s, fp8_flop_per_s, int8_op_per_s, sm_count;
  Figure pcie_gen, pcie_lanes, nvlink_bytes_per_s, price_usd_per_hour;
  Figure read_fraction, gemm_fraction, prefill_fraction, decode_fraction;
  Figure gemm_fixed_ns, attention_fixed_ns, small_fixed_ns, sampler_fixed_ns;
  Figure nvlink_fraction, all_reduce_fixed_ns;
  Figure mixed_decode_rows, attention_fill_tokens;  // absent: 0
  Figure sustained_fraction;                        // absent: 1
  Figure gemm_read_fraction;                        // absent: as read_fraction
  std::vector<AllReduceFigures> all_reduce;         // by ascending number of GPUs
};

struct NodeSpec {
  std::string name, device;
  uint32_t gpus = 0, sockets = 0, gpus_per_pcie_link = 1;
  Figure pcie_out_bytes_per_s;   // GPU to host; absent: as pcie_bytes_per_s
  Figure pcie_both_bytes_per_s;  // both directions of one GPU together; absent: independent
  Figure pcie_bytes_per_s, pcie_latency_ns, copy_overhead_h2d_ns, copy_overhead_d2h_ns;
  Figure host_memory_bytes, host_memory_bytes_per_s, nvlink_bytes_per_s, nvlink_latency_ns;
  Figure price_usd_per_hour;
  Figure nic_bytes_per_s;
  Figure disk_bytes, disk_read_bytes_per_s, disk_write_bytes_per_s, disk_latency_ns;  // all or none
  Figure copy_row_bytes, host_sync_ns;  // for recalls inside a step (models/cost/retrieval_cost.h)
};

}  // namespace kvtwin

#endif  // KVTWIN_MODELS_CATALOG_DEVICE_H_
