// The simulated node compared with textbook formulas, to the nanosecond. Every case runs in its own process.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "sim/sim_backend.h"
#include "sim/simgrid_adapter.h"
#include "tests/unit/sim/in_child.h"
#include "tests/unit/sim/script.h"

using namespace kvtwin;
using namespace kvtwin::testing;

namespace {

struct Move {
  int64_t at_ns = 0;
  uint16_t engine = 0;
  bool in = true;
  uint64_t bytes = 0;
  int from = -1;                                 // the engine that it receives KV from; -1: none
  std::optional<std::pair<Tier, Tier>> tiers{};  // overrides `in`
};

// A move of b bytes is one page of b bytes, since pages of one byte would need spans of gigabytes. All moves
// of an engine therefore have the same size, or none.
sim::SimConfig node(uint32_t engines, uint64_t bytes, CostModel* cost) {
  sim::SimConfig config;
  config.node.gpus = engines;
  config.node.copy_overhead_in = config.node.copy_overhead_out = {0};
  config.node.host_memory_gb_per_s = 100'000;
  for (uint32_t i = 0; i < engines; ++i)
    config.engines.push_back({.cost = cost, .page_bytes = bytes, .gpu_first = i});
  return config;
}

// "e<engine> #<number> <instant>" per move, in the reported order; with `chain`, each starts when the last
// ends.
std::string ends_of(const sim::SimConfig& config, const std::vector<Move>& moves, bool chain = false) {
  return in_child([&] {
    std::string log;
    sim::simulate(config, [&](Backend* backend) {
      const PageId page{};
      const auto start = [&](size_t i) {
        Tier from = moves[i].in ? Tier::kHost : Tier::kGpu, to = moves[i].in ? Tier::kGpu : Tier::kHost;
        if (moves[i].tiers) std::tie(from, to) = *moves[i].tiers;
        const std::span<const PageId> pages(&page, moves[i].bytes > 0 ? 1 : 0);
        StartTransfer command{EngineId{moves[i].engine}, TransferId{i}, {}, from, to, pages, pages};
        if (moves[i].from >= 0) {
          command.kind = TransferKind::kReceive;
          command.source_tier = Tier::kGpu;
          command.from = EngineId{static_cast<uint16_t>(moves[i].from)};
        }
        backend->submit(command);
      };
      const size_t timers = chain ? 1 : moves.size();
      for (size_t i = 0; i < timers; ++i) backend->submit(SetTimer{kClient, TimerId{i}, {moves[i].at_ns}});
      Instant now;
      Event event;
      while (backend->next(&now, &event)) {
        if (const auto* timer = std::get_if<Timer>(&event)) {
          start(raw(timer->timer));
          continue;
        }
        const auto& done = std::get<TransferDone>(event);
        const size_t number = raw(done.transfer);
        if (!chain || number + 1 == moves.size()) {
          log += fmt::format("e{} #{} {}\n", raw(done.engine), number, now.ns);
        }
        if (chain && number + 1 < moves.size()) start(number + 1);
      }
    });
    return log;
  });
}

}  // namespace

TEST_CASE("physics: 1 GB over 900 GB/s after 20 us of overhead takes 1,131,111 ns") {
  sim::SimConfig config = node(1, 1'000'000'000, nullptr);
  ToyCost cost(1, false, 0);
  config.engines[0].cost = &cost;
  config.node.pcie_gb_per_s = 900;
  config.node.copy_overhead_in = {20'000};
  CHECK(ends_of(config, {{0, 0, true, 1}}) == "e0 #0 1131111\n");
  // The other direction has its own overhead.
  CHECK(ends_of(config, {{0, 0, false, 1}}) == "e0 #0 1111111\n");
}

TEST_CASE("physics: two engines that read host memory share it fairly, eight as well") {
  ToyCost cost(1, false, 0);
  sim::SimConfig config = node(8, 25'000'000, &cost);
  config.node.pcie_gb_per_s = 50;
  config.node.host_memory_gb_per_s = 200;
  std::vector<Move> all;
  for (uint16_t i = 0; i < 8; ++i) all.push_back({0, i, true, 1});
  // 8 x 25 MB over 200 GB/s: 25 GB/s each, 1 ms; reported by engine, regardless of SimGrid's order.
  CHECK(ends_of(config, all) ==
        "e0 #0 1000000\ne1 #1 1000000\ne2 #2 1000000\ne3 #3 1000000\n"
        "e4 #4 1000000\ne5 #5 1000000\ne6 #6 1000000\ne7 #7 1000000\n");
  // A copy alone ends at a whole nanosecond, which adds or removes up to half a nanosecond's bytes: 25 MB at
  // 55 GB/s are 25 bytes less, at 25 GB/s 1 ns.
  config.node.pcie_gb_per_s = 55;
  CHECK(ends_of(config, all).starts_with("e0 #0 999999\n"));
  config.node.pcie_gb_per_s = 50;
  config.node.host_memory_gb_per_s = 50;
  CHECK(ends_of(config, {{0, 0, true, 1}, {0, 1, true, 1}}) == "e0 #0 1000000\ne1 #1 1000000\n");
  // Alone for 0.1 ms (5 MB of 25 at 50 GB/s), then half each: 0.1 + 0.8 ms, then alone again.
  CHECK(ends_of(config, {{0, 0, true, 1}, {100'000, 1, true, 1}}) == "e0 #0 900000\ne1 #1 1000000\n");
}

TEST_CASE("physics: opposite directions of PCIe do not disturb each other, but share host memory") {
  ToyCost cost(1, false, 0);
  sim::SimConfig config = node(1, 55'000'000, &cost);
  config.node.pcie_gb_per_s = 55;
  CHECK(ends_of(config, {{0, 0, true, 1}, {0, 0, false, 1}}) == "e0 #0 1000000\ne0 #1 1000000\n");
  config.node.host_memory_gb_per_s = 55;
  CHECK(ends_of(config, {{0, 0, true, 1}, {0, 0, false, 1}}) == "e0 #0 2000000\ne0 #1 2000000\n");
}

TEST_CASE("physics: a direction has its own rate, and both directions together have a limit") {
  ToyCost cost(1, false, 0);
  sim::SimConfig config = node(1, 50'000'000, &cost);
  config.node.pcie_gb_per_s = 50;
  config.node.pcie_out_gb_per_s = 40;
  CHECK(ends_of(config, {{0, 0, true, 1}}) == "e0 #0 1000000\n");
  CHECK(ends_of(config, {{0, 0, false, 1}}) == "e0 #0 1250000\n");
  config.node.pcie_out_gb_per_s = 0;
  config.node.pcie_both_gb_per_s = 80;
  CHECK(ends_of(config, {{0, 0, false, 1}}) == "e0 #0 1000000\n");
  CHECK(ends_of(config, {{0, 0, true, 1}, {0, 0, false, 1}}) == "e0 #0 1250000\ne0 #1 1250000\n");
  // A neighbour has its own link.
  config = node(2, 50'000'000, &cost);
  config.node.pcie_gb_per_s = 50, config.node.pcie_both_gb_per_s = 80;
  CHECK(ends_of(config, {{0, 0, true, 1}, {0, 1, false, 1}}) == "e0 #0 1000000\ne1 #1 1000000\n");
}

TEST_CASE("physics: copies of one direction run in sequence, each after its own overhead") {
  ToyCost cost(1, false, 0);
  sim::SimConfig config = node(2, 5'500'000, &cost);
  config.node.pcie_gb_per_s = 55;
  config.node.copy_overhead_in = {2'300};
  CHECK(ends_of(config, {{0, 0, true, 1}, {0, 0, true, 1}, {0, 0, true, 1}}) ==
        "e0 #0 102300\ne0 #1 204600\ne0 #2 306900\n");
  // Contention delays the bytes only: 5.5 MB at 27.5 GB/s take 200 us, and the overhead stays 2.3 us.
  config.node.host_memory_gb_per_s = 55;
  CHECK(ends_of(config, {{0, 0, true, 1}, {0, 1, true, 1}}) == "e0 #0 202300\ne1 #1 202300\n");
}

TEST_CASE("physics: a copy starts after the host has planned it, and after earlier copies") {
  ToyCost cost(1, false, 0);
  sim::SimConfig config = node(1, 5'500'000, &cost);
  config.node.pcie_gb_per_s = 55;  // 100 us a copy
  config.engines[0].planning = {.ns = 30'000, .request_ns = 500};
  // The second is submitted at 90 us and waits for the first.
  CHECK(ends_of(config, {{0, 0, true, 1}, {60'000, 0, true, 1}}) == "e0 #0 130000\ne0 #1 230000\n");
  const std::string with_decodes = in_child([&] {
    std::string log;
    sim::simulate(config, [&](Backend* backend) {
      const std::vector<PlanEntry> decodes(4, {.kind = EntryKind::kDecode, .samples = true, .tokens = 1});
      backend->submit(LaunchStep{.tokens = 4, .entries = decodes, .allocations = {}, .prefix_hits = {}});
      const PageId page{};
      backend->submit(StartTransfer{{}, {}, {}, Tier::kHost, Tier::kGpu, {&page, 1}, {&page, 1}});
      Instant now;
      Event event;
      while (backend->next(&now, &event)) {
        if (std::holds_alternative<TransferDone>(event)) log += fmt::format("{}", now.ns);
      }
    });
    return log;
  });
  CHECK(with_decodes == "132000");
}

TEST_CASE("physics: copies with different overheads share a link equally") {
  // SimGrid gives a link of a tenth of the latency ten times the bandwidth; a delay instead gives equal
  // fractions.
  ToyCost cost(1, false, 0);
  sim::SimConfig config = node(2, 10'000'000, &cost);
  config.node.pcie_gb_per_s = 55;
  config.node.host_memory_gb_per_s = 20;
  config.node.copy_overhead_in = {20'000};
  config.node.copy_overhead_out = {2'000};
  // The outgoing copy is alone for 18 us (0.36 MB), then both get 10 GB/s until its other 9.64 MB are done:
  // 964 us.
  CHECK(ends_of(config, {{0, 0, true, 1}, {0, 1, false, 1}}) == "e1 #1 984000\ne0 #0 1002000\n");
}

TEST_CASE("physics: an empty transfer is done at once") {
  ToyCost cost(1, false, 0);
  CHECK(ends_of(node(1, 1000, &cost), {{5'000, 0, true, 0}}) == "e0 #0 5000\n");
  CHECK(ends_of(node(1, 0, &cost), {{5'000, 0, true, 1}}) == "e0 #0 5000\n");
}

TEST_CASE("physics: an engine of four GPUs moves four quarters concurrently") {
  ToyCost cost(1, false, 0);
  sim::SimConfig config = node(1, 220'000'000, &cost);
  config.node.gpus = 4;
  config.node.sockets = 2;
  config.node.pcie_gb_per_s = 55;
  config.engines[0].gpus = 4;
  CHECK(ends_of(config, {{0, 0, true, 1}}) == "e0 #0 1000000\n");
  // Two GPUs per socket share its memory: 27.5 GB/s each.
  config.node.host_memory_gb_per_s = 55;
  CHECK(ends_of(config, {{0, 0, true, 1}}) == "e0 #0 2000000\n");
}

TEST_CASE("physics: completion costs no time, and rounding errors do not accumulate") {
  ToyCost cost(1, false, 0);
  // 1 MB at 55.4 GB/s takes 18,050.54 ns, reported as 18,051: 2,000 of them in sequence, also 10^6 s later.
  sim::SimConfig config = node(1, 1'000'000, &cost);
  for (const int64_t start : {int64_t{0}, int64_t{1'000'000'000'000'000}}) {
    CAPTURE(start);
    const std::vector<Move> moves(2000, {start, 0, true, 1});
    CHECK(ends_of(config, moves, true) == fmt::format("e0 #1999 {}\n", start + 2000 * 18'051));
    CHECK(ends_of(config, std::vector<Move>(3, {start, 0, true, 1})) ==
          fmt::format("e0 #0 {}\ne0 #1 {}\ne0 #2 {}\n", start + 18'051, start + 2 * 18'051,
                      start + 3 * 18'051));
  }
}

TEST_CASE(
    "physics: events a nanosecond apart stay apart, and simultaneous events keep the order of backend.h") {
  ToyCost cost(1, false, 0);
  sim::SimConfig config = node(3, 100'000, &cost);
  config.node.pcie_gb_per_s = 100;
  CHECK(ends_of(config, {{1, 2, true, 1}, {0, 1, true, 1}, {0, 0, true, 1}, {2, 0, false, 1}}) ==
        "e0 #2 1000\ne1 #1 1000\ne2 #0 1001\ne0 #3 1002\n");
}

// Computed by hand: 0.1 ms of latency, then 28 MB at 7 GB/s. The PCIe link of 50 GB/s is no limit.
TEST_CASE(
    "physics: a read from the disk takes a latency and the bytes at the disk's rate; writes have their own") {
  ToyCost cost(1, false, 0);
  sim::SimConfig config = node(2, 28'000'000, &cost);
  config.node.pcie_gb_per_s = 50;
  config.node.host_memory_gb_per_s = 200;
  config.node.disk_read_gb_per_s = 7;
  config.node.disk_write_gb_per_s = 4;
  config.node.disk_latency = {100'000};
  const Tier host = Tier::kHost, disk = Tier::kDisk, gpu = Tier::kGpu;
  CHECK(ends_of(config, {{.bytes = 1, .tiers = {{disk, gpu}}}}) == "e0 #0 4100000\n");
  CHECK(ends_of(config, {{.bytes = 1, .tiers = {{host, disk}}}}) == "e0 #0 7100000\n");
  // Reads and writes run concurrently; two reads of one engine run in sequence, each with its latency.
  CHECK(ends_of(config, {{.bytes = 1, .tiers = {{disk, gpu}}},
                         {.bytes = 1, .tiers = {{disk, gpu}}},
                         {.bytes = 1, .tiers = {{host, disk}}}}) ==
        "e0 #0 4100000\ne0 #2 7100000\ne0 #1 8200000\n");
  // Two engines share the disk: 56 MB over 7 GB/s.
  CHECK(ends_of(config,
                {{.bytes = 1, .tiers = {{disk, gpu}}}, {.engine = 1, .bytes = 1, .tiers = {{disk, gpu}}}}) ==
        "e0 #0 8100000\ne1 #1 8100000\n");
  // A copy from the host has the link alone for 0.1 ms, in which 5 MB pass; then the read leaves it 43 GB/s.
  CHECK(ends_of(config, {{.bytes = 1, .tiers = {{disk, gpu}}}, {.in = true, .bytes = 1}}) ==
        "e0 #1 634884\ne0 #0 4100000\n");
  // One engine on two GPUs: half of the bytes to each, over one disk.
  config.engines.resize(1);
  config.engines[0].gpus = 2;
  CHECK(ends_of(config, {{.bytes = 1, .tiers = {{disk, gpu}}}}) == "e0 #0 4100000\n");
}

TEST_CASE("physics: memory of the other socket is reached over the socket link, NVLink over its own link") {
  sim::PlatformSpec spec;
  spec.gpus = 4;
  spec.sockets = 2;
  spec.pcie_gb_per_s = 50;
  spec.socket_link_gb_per_s = 40;
  spec.nvlink_gb_per_s = 450;
  spec.disk_read_gb_per_s = 7;
  spec.disk_write_gb_per_s = 3;
  const std::string log = in_child([&] {
    std::string text;
    sim::SimGrid grid(spec);
    const auto near = grid.host_to_gpu(0, 0), far = grid.host_to_gpu(0, 3), far_too = grid.host_to_gpu(0, 2);
    const auto nvlink = grid.gpu_to_gpu(1, 2), disk = grid.disk_to_gpu(1);
    grid.on_done([&](sim::Token token) { text += fmt::format("{} {:.1f}\n", token, grid.now_ns()); });
    grid.run([&] {
      grid.start_copy(near, 50'000'000, 1);     // 1 ms
      grid.start_copy(far, 40'000'000, 2);      // the two share 40 GB/s
      grid.start_copy(far_too, 40'000'000, 3);  // 2 ms
      grid.start_copy(nvlink, 900'000'000, 4);  // 2 ms
      grid.start_copy(disk, 21'000'000, 5);     // 3 ms
    });
    return text + fmt::format("{} {} {}", grid.gb_per_s(far), grid.gb_per_s(nvlink), grid.gb_per_s(disk));
  });
  CHECK(log.starts_with("1 1000000.0\n"));
  for (const char* line : {"2 2000000.0\n", "3 2000000.0\n", "4 2000000.0\n", "5 3000000.0\n"}) {
    CHECK(log.find(line) != std::string::npos);
  }
  CHECK(log.ends_with("40 450 7"));
}

TEST_CASE("physics: KV moves between GPUs over NVLink or PCIe, and between nodes over network cards") {
  ToyCost cost(1, false, 0);
  sim::SimConfig config = node(3, 100'000'000, &cost);
  config.prefill_engines = 1;
  config.node.gpus = 2;
  config.node.pcie_gb_per_s = 50;
  config.node.nvlink_gb_per_s = 400;
  config.node.nic_gb_per_s = 40;
  config.node.copy_overhead_in = {5'000};
  config.node.further = {config.node};
  config.node.further[0].nic_gb_per_s = 25;
  config.engines[2].gpu_first = 3;
  const std::vector<Move> near = {{.engine = 1, .bytes = 1, .from = 0}},
                          far = {{.engine = 2, .bytes = 1, .from = 0}};
  CHECK(ends_of(config, near) == "e1 #0 255000\n");  // 100 MB / 400 GB/s + 5 us
  CHECK(ends_of(config, far) == "e2 #0 4005000\n");  // the slower card: 25 GB/s
  // Both at once: the sender's NVLink and card are separate links.
  CHECK(ends_of(config, {near[0], far[0]}) == "e1 #0 255000\ne2 #1 4005000\n");
  config.node.nvlink_gb_per_s = 0;
  CHECK(ends_of(config, near) == "e1 #0 2005000\n");  // PCIe, without host memory
  // An engine of two GPUs receives half on each, from the sender's only GPU: its link is shared.
  config.engines.resize(2);
  config.engines[1] = {.cost = &cost, .page_bytes = 100'000'000, .gpu_first = 2, .gpus = 2};
  // 50 MB at 20 GB/s each.
  CHECK(ends_of(config, near) == "e1 #0 2505000\n");
  config.node.nic_gb_per_s = 0;
  CHECK(validate_sim_config(config).error().what == "there is no way for KV from engines[0]");
  config.node.nic_gb_per_s = 40;
  config.engines[1].page_bytes = 1;
  CHECK(validate_sim_config(config).error().what.find("a page has 1 bytes") == 0);
}

TEST_CASE("physics: kernels that overlap on one GPU share it, those on two GPUs do not") {
  sim::PlatformSpec spec;
  spec.gpus = 2;
  const std::string log = in_child([&] {
    std::string text;
    sim::SimGrid grid(spec);
    grid.on_done([&](sim::Token token) { text += fmt::format("{} {:.3f}\n", token, grid.now_ns()); });
    grid.run([&] {
      grid.start_kernel(0, 1000, 1);
      grid.start_kernel(0, 3000, 2);
      grid.start_kernel(1, 2500, 3);
    });
    return text;
  });
  CHECK(log == "1 2000.000\n3 2500.000\n2 4000.000\n");
}

TEST_CASE("physics: a second simulation in one process gives the same result") {
  ToyCost cost(1, false, 0);
  sim::SimConfig config = node(2, 1'234'567, &cost);
  config.node.host_memory_gb_per_s = 60;
  const ScriptOptions options{.seed = 9, .outside = 100, .outside_gap_ns_max = 20'000};
  const std::string both = in_child([&] {
    std::string text;
    for (int i = 0; i < 2; ++i) {
      sim::simulate(config, [&](Backend* backend) { text += Script(config, options, backend).run(); });
    }
    return text;
  });
  REQUIRE(both.size() > 1000);
  CHECK(both.substr(0, both.size() / 2) == both.substr(both.size() / 2));
}

TEST_CASE("physics: errors in a node or an engine are named") {
  ToyCost cost(1, false, 0);
  sim::SimConfig config = node(2, 1, &cost);
  CHECK(validate_sim_config(config).has_value());
  config.engines[1].gpus = 2;
  CHECK(validate_sim_config(config).error().text() ==
        "engines[1]: GPUs 1 to 3 (not included); the node has 2");
  config.engines[1].gpus = 1;
  config.node.pcie_gb_per_s = 0;
  CHECK(validate_sim_config(config).error().what == "pcie_gb_per_s is 0.000000");
  config.node.pcie_gb_per_s = -std::numeric_limits<double>::infinity();
  CHECK_FALSE(validate_sim_config(config).has_value());
  config.node.pcie_gb_per_s = std::numeric_limits<double>::quiet_NaN();
  CHECK_FALSE(validate_sim_config(config).has_value());
  config.node.pcie_gb_per_s = 50;
  config.node.sockets = 3;
  CHECK_FALSE(validate_sim_config(config).has_value());
}
