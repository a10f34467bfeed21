// Reads DeviceSpec and NodeSpec from textproto.

#include <fmt/format.h>

#include <algorithm>

#include "models/catalog/catalog.h"
#include "models/files/textproto.h"
#include "traces/proto/model.pb.h"

namespace kvtwin {
namespace {

// Reads figures of one message and records every error.
class FigureReader {
 public:
  explicit FigureReader(const std::string& where) : where_(where) {}

  Figure read(const char* field, bool present, const v1::Figure& in, bool required, double low, double high) {
    Figure out;
    if (!present) {
      if (required)
        fail(fmt::format("no figure \"{}\"", field),
             "give its value, basis and source; or name a device or node that has it: base: \"h100\"");
      return out;
    }
    if (!(in.value() >= low && in.value() <= high)) {
      fail(fmt::format("{} is {}", field, in.value()), fmt::format("{} to {} is right", low, high));
    } else if (in.basis() == v1::Figure::BASIS_UNSPECIFIED || !v1::Figure::Basis_IsValid(in.basis())) {
      fail(fmt::format("{} has no basis", field), "DATASHEET, MEASURED, DERIVED or ASSUMED");
    } else if (in.source().empty()) {
      fail(fmt::format("{} has no source", field), "say where the figure was read, or why it is assumed");
    }
    return {in.value(), static_cast<Basis>(in.basis()), in.source()};
  }
  // The first error's hint is that of all.
  void fail(const std::string& what, std::string hint) {
    if (all_.what.empty()) {
      all_ = {where_, what, std::move(hint)};
    } else {
      all_.what += fmt::format("\n{}: {}", where_, what);
    }
  }
  Result<void> result() const { return all_.what.empty() ? Result<void>() : tl::unexpected<Error>(all_); }

 private:
  std::string where_;
  Error all_;
};

#define KVT_FIGURE(field, required, low, high) \
  out.field = reader.read(#field, in.has_##field(), in.field(), required, low, high)

Result<DeviceSpec> device_from(const v1::DeviceSpec& in, const std::string& where) {
  FigureReader reader(where);
  DeviceSpec out;
  out.name = in.name(), out.title = in.title();
  KVT_FIGURE(hbm_bytes, true, 1e6, 1e14);
  KVT_FIGURE(hbm_bytes_per_s, true, 1e6, 1e15);
  KVT_FIGURE(bf16_flop_per_s, true, 1e6, 1e18);
  KVT_FIGURE(fp8_flop_per_s, false, 1e6, 1e18);
  KVT_FIGURE(int8_op_per_s, false, 1e6, 1e18);
  KVT_FIGURE(sm_count, true, 1, 1e5);
  KVT_FIGURE(pcie_gen, true, 1, 10);
  KVT_FIGURE(pcie_lanes, true, 1, 64);
  KVT_FIGURE(nvlink_bytes_per_s, false, 1e6, 1e14);
  KVT_FIGURE(price_usd_per_hour, false, 0, 1e6);
  KVT_FIGURE(read_fraction, true, 0.01, 1);
  KVT_FIGURE(gemm_fraction, true, 0.01, 1);
  KVT_FIGURE(prefill_fraction, true, 0.01, 1);
  KVT_FIGURE(decode_fraction, true, 0.01, 1);
  KVT_FIGURE(gemm_fixed_ns, true, 0, 1e9);
  KVT_FIGURE(attention_fixed_ns, true, 0, 1e9);
  KVT_FIGURE(small_fixed_ns, true, 0, 1e9);
  KVT_FIGURE(sampler_fixed_ns, true, 0, 1e9);
  KVT_FIGURE(nvlink_fraction, true, 0.01, 1);
  KVT_FIGURE(all_reduce_fixed_ns, true, 0, 1e9);
  KVT_FIGURE(mixed_decode_rows, false, 0, 1024);
  KVT_FIGURE(attention_fill_tokens, false, 0, 4096);
  KVT_FIGURE(sustained_fraction, false, 0.1, 1);
  KVT_FIGURE(gemm_read_fraction, false, 0.01, 1);
  for (const v1::AllReduceFigures& row : in.all_reduce()) {
    if (row.gpus() < 2 || (!out.all_reduce.empty() && row.gpus() <= out.all_reduce.back().gpus)) {
      reader.fail(fmt::format("all_reduce has gpus {}", row.gpus()),
                  "at least 2, and more in each entry than in the one before, is right");
    }
    out.all_reduce.push_back(
        {row.gpus(), reader.read("all_reduce.fixed_ns", row.has_fixed_ns(), row.fixed_ns(), true, 0, 1e9),
         reader.read("all_reduce.bytes_per_s", row.has_bytes_per_s(), row.bytes_per_s(), true, 1e6, 1e14)});
  }
  if (auto r = reader.result(); !r) return tl::unexpected<Error>(r.error());
  return out;
}

Result<NodeSpec> node_from(const v1::NodeSpec& in, const std::string& where) {
  FigureReader reader(where);
  NodeSpec out;
  out.name = in.name(), out.device = in.device();
  out.gpus = in.gpus(), out.sockets = in.sockets(), out.gpus_per_pcie_link = in.gpus_per_pcie_link();
  KVT_FIGURE(pcie_bytes_per_s, true, 1e6, 1e13);
  KVT_FIGURE(pcie_latency_ns, true, 0, 1e9);
  KVT_FIGURE(copy_overhead_h2d_ns, true, 0, 1e9);
  KVT_FIGURE(copy_overhead_d2h_ns, true, 0, 1e9);
  KVT_FIGURE(copy_row_bytes, false, 0, 1e6);
  KVT_FIGURE(host_sync_ns, false, 0, 1e9);
  KVT_FIGURE(host_memory_bytes, true, 1e6, 1e15);
  KVT_FIGURE(host_memory_bytes_per_s, true, 1e6, 1e14);
  KVT_FIGURE(nvlink_bytes_per_s, false, 1e6, 1e14);
  KVT_FIGURE(nic_bytes_per_s, false, 1e6, 1e13);
  KVT_FIGURE(disk_bytes, false, 1e6, 1e16);
  KVT_FIGURE(disk_read_bytes_per_s, in.has_disk_bytes(), 1e6, 1e13);
  KVT_FIGURE(disk_write_bytes_per_s, in.has_disk_bytes(), 1e6, 1e13);
  KVT_FIGURE(disk_latency_ns, in.has_disk_bytes(), 0, 1e9);
  KVT_FIGURE(nvlink_latency_ns, in.has_nvlink_bytes_per_s(), 0, 1e9);
  KVT_FIGURE(price_usd_per_hour, false, 0, 1e6);
  if (out.device.empty()) reader.fail("no device", "name a device of the catalog, or a path");
  const struct {
    const char* name;
    uint32_t value, high;
  } counts[] = {{"gpus", out.gpus, 1024},
                {"sockets", out.sockets, 64},
                {"gpus_per_pcie_link", out.gpus_per_pcie_link, std::max(out.gpus, 1u)}};
  for (const auto& c : counts) {
    if (c.value < 1 || c.value > c.high)
      reader.fail(fmt::format("{} is {}", c.name, c.value), fmt::format("1 to {} is right", c.high));
  }
  if (auto r = reader.result(); !r) return tl::unexpected<Error>(r.error());
  return out;
}
#undef KVT_FIGURE

}  // namespace

const char* name_of(Basis basis) {
  constexpr const char* names[] = {"absent", "datasheet", "measured", "derived", "assumed"};
  return names[static_cast<size_t>(basis)];
}

Result<DeviceSpec> parse_device(std::string_view text, const std::string& where, const Catalog& catalog) {
  v1::DeviceSpec message;
  if (auto r = catalog.parse("device", text, where, &message); !r) return tl::unexpected<Error>(r.error());
  return device_from(message, where);
}

Result<NodeSpec> parse_node(std::string_view text, const std::string& where, const Catalog& catalog) {
  v1::NodeSpec message;
  if (auto r = catalog.parse("node", text, where, &message); !r) return tl::unexpected<Error>(r.error());
  return node_from(message, where);
}

}  // namespace kvtwin
