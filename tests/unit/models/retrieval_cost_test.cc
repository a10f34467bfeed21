// Prices of retrieval computed by hand, with figures that are easy to divide by.

#include "models/cost/retrieval_cost.h"

#include <doctest/doctest.h>

#include "models/catalog/catalog.h"

using namespace kvtwin;

namespace {

LlmSpec grouped_llm() {
  LlmSpec llm;
  llm.layers = 4;
  llm.query_heads = 32;
  llm.kv_heads = 8;
  llm.head_dim = 128;
  llm.hidden = 4096;
  return llm;
}

DeviceSpec retrieving_device() {
  DeviceSpec device;
  const auto figure = [](double value) { return Figure{value, Basis::kAssumed, "easy"}; };
  device.hbm_bytes_per_s = figure(1e12);  // 1,000 bytes per ns
  device.read_fraction = figure(1);
  device.bf16_flop_per_s = figure(16e12);  // vector arithmetic: 1,000 per ns
  device.gemm_fraction = figure(1);
  device.small_fixed_ns = figure(1000);
  device.gemm_fixed_ns = figure(5000);
  return device;
}

NodeSpec retrieving_node() {
  NodeSpec node;
  const auto figure = [](double value) { return Figure{value, Basis::kAssumed, "easy"}; };
  node.pcie_bytes_per_s = figure(16.384e9);  // a page of one head in 1 us
  node.host_memory_bytes_per_s = figure(1e12);
  node.copy_overhead_h2d_ns = figure(2000);
  node.copy_overhead_d2h_ns = figure(1000);
  node.copy_row_bytes = figure(512);
  node.host_sync_ns = figure(6000);
  return node;
}

double ns(Ticks ticks) { return static_cast<double>(ticks) / kTicksPerNs; }

RetrievalCost cost(const RetrievalGeometry& geometry, uint32_t tp = 1) {
  return RetrievalCost(grouped_llm(), retrieving_device(), retrieving_node(), tp, geometry);
}

}  // namespace

TEST_CASE("retrieval cost: h(x, u) = requests * t_request + x / rate * (1 + u0 / u)") {
  struct Row {
    const char* what;
    RetrievalGeometry geometry;
    double want_ns;
    uint64_t want_bytes;
  };
  for (const Row& row :
       {Row{"HND: one piece of 16 KB", {}, 2000 + 1000, 16384},
        Row{"NHD: 64 rows of 256 B in one copy", {.piece_bytes = 256}, 2000 + 1000 * 3, 16384},
        Row{"NHD: 64 copies", {.piece_bytes = 256, .copy_each_piece = true}, 64 * 2000 + 1000, 16384},
        Row{"values alone", {.values_only = true}, 2000 + 500, 8192},
        Row{"tokens of 512 B", {.piece_bytes = 512}, 2000 + 1000 * 2, 16384}}) {
    CAPTURE(row.what);
    const RetrievalPrice price = cost(row.geometry).recall();
    CHECK(ns(price.unit) == doctest::Approx(row.want_ns).epsilon(1e-6));
    CHECK(price.unit_bytes == row.want_bytes);
  }
}

TEST_CASE("retrieval cost: measured recalls cost a time per page") {
  RetrievalCost measured = cost({});
  measured.set_measured(
      {.page_now_us = 2, .page_next_us = 3, .concurrent_page_us = 0.25, .page_launched_us = 0.125});
  const auto us = [](Ticks ticks) { return static_cast<double>(ticks) / kTicksPerNs / 1e3; };
  CHECK(us(measured.recall().unit) == doctest::Approx(2));
  CHECK(us(measured.recall(false).unit) == doctest::Approx(3));
  for (const bool now : {false, true}) CHECK(measured.recall(now).fixed == 0);
  CHECK(us(measured.concurrent(80, false)) == doctest::Approx(20));
  CHECK(us(measured.concurrent(80, true)) == doctest::Approx(30));
  CHECK(measured.concurrent(0, true) == 0);
}

TEST_CASE("retrieval cost: the slower of PCIe and host memory decides") {
  NodeSpec node = retrieving_node();
  node.host_memory_bytes_per_s.value = 8.192e9;
  const RetrievalCost slow(grouped_llm(), retrieving_device(), node, 1, {});
  CHECK(ns(slow.recall().unit) == doctest::Approx(2000 + 2000).epsilon(1e-6));
}

TEST_CASE("retrieval cost: two buffers hide all but the last pair's conversion, one hides none") {
  const double each = 2 * 16384 / 1000.0;  // read and written
  RetrievalGeometry geometry;
  const RetrievalPrice two = cost(geometry).convert(8);
  CHECK(ns(two.unit) == doctest::Approx(each / 8).epsilon(1e-3));
  geometry.staging_buffers = 1;
  const RetrievalPrice one = cost(geometry).convert(8);
  CHECK(ns(one.unit) == doctest::Approx(each).epsilon(1e-3));
  CHECK(one.fixed > 7 * two.fixed);
  CHECK(ns(cost({}).convert(0).unit) == doctest::Approx(each).epsilon(1e-3));  // no retrieval: no division
}

TEST_CASE("retrieval cost: scores read summaries, or partial keys") {
  // 1,024 pages x 2 vectors x 8 heads x 128 x 2 B = 4.2 MB and scores of 32 heads; arithmetic: 4 heads each.
  const double bytes = 1024 * (2 * 8 * 128 * 2 + 32 * 4), flop = 2.0 * 1024 * 2 * 8 * 128 * 4;
  CHECK(ns(cost({}).score(32768)) == doctest::Approx(std::max(bytes, flop) / 1000 + 1000).epsilon(1e-4));
  RetrievalGeometry partial;
  partial.scored_columns = 0.25;
  const double values = 32768.0 * 8 * 32;
  CHECK(ns(cost(partial).score(32768)) ==
        doctest::Approx(std::max(values * 2, values * 8) / 1000 + 1000).epsilon(1e-4));
  CHECK(cost({}).score(65536) > cost({}).score(32768));
  CHECK(ns(cost({}).cosine(1)) > 6000);  // the host reads the flag
}

TEST_CASE("retrieval cost: heads are divided among GPUs, a page of one head is not") {
  CHECK(cost({}, 1).recall().unit == cost({}, 4).recall().unit);
  CHECK(cost({}, 4).kv_heads() == 2);
  CHECK(cost({}, 1).offload().unit_bytes == 8 * 16384);
  CHECK(cost({}, 4).offload().unit_bytes == 2 * 16384);
}

TEST_CASE("retrieval cost: 1/32 of a page stays on the GPU for min and max of a page of 32 tokens") {
  CHECK(resident_fraction(grouped_llm(), {}, 0) == doctest::Approx(1.0 / 32));
  // One dense layer of four, and 1/32 of the others.
  CHECK(resident_fraction(grouped_llm(), {}, 1) == doctest::Approx(0.25 + 0.75 / 32));
  CHECK(resident_fraction(grouped_llm(), {.summary_vectors = 1, .rank = 160}, 0) ==
        doctest::Approx(1.0 / 64 + 160.0 / 2048));
  CHECK(resident_fraction(grouped_llm(), {.scored_columns = 0.3}, 0) == doctest::Approx(0.15));
}

TEST_CASE("retrieval cost: a page that outlives its request is offloaded and loaded with its summaries") {
  RetrievalGeometry geometry{.page_tokens = 32};
  const uint64_t page = 2 * 2 * 32 * 8 * 128;  // of one layer: K and V in bf16
  CHECK(cost(geometry).offload().unit_bytes == page);
  geometry.keeps_prefixes = true;
  CHECK(cost(geometry).offload().unit_bytes == page + page / 32);  // two vectors in addition to 2 x 32
  CHECK(ns(cost(geometry).offload().unit) > page / 16.384 * 33 / 32);
  CHECK(summary_fraction(grouped_llm(), geometry, 0) == doctest::Approx(1.0 / 32));
  CHECK(summary_fraction(grouped_llm(), geometry, 1) == doctest::Approx(3.0 / 4 / 32));
  geometry.summary_vectors = 1;
  CHECK(summary_fraction(grouped_llm(), geometry, 0) == doctest::Approx(1.0 / 64));
  geometry.scored_columns = 0.3;  // partial keys are recomputed
  CHECK(summary_fraction(grouped_llm(), geometry, 0) == 0);
}

TEST_CASE("retrieval cost: every node of the catalog has times of a recall and of a host synchronisation") {
  const Catalog catalog;
  for (const char* name :
       {"a100-40gb", "a100-80gb", "b200", "h100", "h200", "h200-x8", "l40s", "rtx-4090", "rtx-pro-6000"}) {
    CAPTURE(name);
    const Result<NodeSpec> node = catalog.node(name);
    REQUIRE(node);
    CHECK(node->copy_row_bytes.present());
    CHECK(node->host_sync_ns.present());
  }
}

TEST_CASE("retrieval cost: packed pages are read, moved and held by their bytes; summaries stay bf16") {
  LlmSpec llm = grouped_llm();
  llm.kv = {NumberFormat::kFp8};
  const RetrievalCost packed(llm, retrieving_device(), retrieving_node(), 1, {});
  CHECK(packed.recall().unit_bytes == 8192);
  CHECK(ns(packed.recall().unit) == doctest::Approx(2000 + 500));
  CHECK(packed.offload().unit_bytes == cost({}).offload().unit_bytes / 2);
  CHECK(summary_fraction(llm, {}, 0) == doctest::Approx(2 * summary_fraction(grouped_llm(), {}, 0)));
  CHECK(resident_fraction(llm, {}, 0) == doctest::Approx(2 * resident_fraction(grouped_llm(), {}, 0)));
}
