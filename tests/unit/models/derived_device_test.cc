#include "models/cost_tables/derived_device.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>

namespace kvtwin {
namespace {

MeasuredDevice measured(const char* name) {
  return load_measured_device(default_models_dir() + "/measured/" + name + ".textproto").value();
}

ModelOnGpu on(const char* llm, const char* gpu) {
  const Catalog catalog;
  return {catalog.llm(llm).value(), catalog.device(gpu).value()};
}

const MeasuredTable& table(const MeasuredDevice& device, const char* operation, const char* shape) {
  const MeasuredTable* const found = device.table(operation, shape);
  REQUIRE(found != nullptr);
  return *found;
}

TEST_CASE("derived profiles: of the same model and GPU, medians are unchanged") {
  const MeasuredDevice h100 = measured("h100");
  const ModelOnGpu here = on("llama-3.1-8b", "h100");
  const MeasuredDevice derived = derive_device(h100, here, here);
  REQUIRE(derived.tables.size() == h100.tables.size());
  for (size_t t = 0; t < h100.tables.size(); ++t) {
    CAPTURE(h100.tables[t].operation);
    CHECK(derived.tables[t].rows == h100.tables[t].rows);
    CHECK(derived.tables[t].context == h100.tables[t].context);
    for (size_t i = 0; i < h100.tables[t].at.size(); ++i)
      CHECK(derived.tables[t].at[i].us == doctest::Approx(h100.tables[t].at[i].us));
  }
}

TEST_CASE("derived profiles: an H200's kernels follow from an H100's") {
  const MeasuredDevice derived =
      derive_device(measured("h100"), on("llama-3.1-8b", "h100"), on("llama-3.1-8b", "h200"));
  const MeasuredDevice h200 = measured("h200");
  CHECK(derived.gpu == "NVIDIA H200");
  std::vector<double> errors;
  for (const auto& [operation, shape] : {std::pair{"qkv", "6144x4096"},
                                         {"gate up", "28672x4096"},
                                         {"down", "4096x14336"},
                                         {"attention out", "4096x4096"}}) {
    const MeasuredTable &is = table(h200, operation, shape), &was = table(derived, operation, shape);
    for (size_t i = 0; i < is.rows.size(); ++i) {
      const auto at = std::find(was.rows.begin(), was.rows.end(), is.rows[i]);
      if (at == was.rows.end()) continue;
      errors.push_back(std::abs(was.at[static_cast<size_t>(at - was.rows.begin())].us / is.at[i].us - 1));
    }
  }
  REQUIRE(errors.size() > 20);  // points that both files have
  const Measured spread = measured_of(errors);
  CHECK(spread.us < 0.06);
  CHECK(spread.p90 < 0.25);
}

TEST_CASE("derived profiles: decode attention of a model with half the KV reads as many bytes") {
  const MeasuredDevice h100 = measured("h100");
  const MeasuredDevice derived = derive_device(h100, on("llama-3.1-8b", "h100"), on("qwen2.5-7b", "h100"));
  CHECK(derived.model == "qwen2.5-7b");
  const MeasuredTable& llama = table(h100, "decode attention", "32/8x128");
  const MeasuredTable& qwen = table(derived, "decode attention", "28/4x128");
  REQUIRE(qwen.rows == llama.rows);
  CHECK(qwen.context.back() == 2 * llama.context.back());
  CHECK(qwen.at.back().us == doctest::Approx(llama.at.back().us).epsilon(0.01));
  // Kernels that the host launches one by one: 28 layers in place of 32.
  CHECK(table(derived, "launched host", "qwen2.5-7b").at.front().us ==
        doctest::Approx(table(h100, "launched host", "llama-3.1-8b").at.front().us * 28 / 32));
  CHECK(table(derived, "decode after load", "qwen2.5-7b").at.front().us ==
        table(h100, "decode after load", "llama-3.1-8b").at.front().us);
  CHECK(table(derived, "copy in during steps", "2097152").at.size() ==
        table(h100, "copy in during steps", "2097152").at.size());
}

TEST_CASE("derived profiles: experts, quantised weights and other SMs cannot be derived") {
  const ModelOnGpu h100 = on("llama-3.1-8b", "h100");
  CHECK(can_derive(h100, on("qwen2.5-7b", "h200")));
  CHECK_FALSE(can_derive(h100, on("mixtral-8x7b", "h100")));
  CHECK_FALSE(can_derive(h100, on("llama-3.1-8b", "rtx-4090")));
  ModelOnGpu int4 = h100;
  int4.llm.weights.dtype = NumberFormat::kInt4;
  CHECK_FALSE(can_derive(h100, int4));
}

TEST_CASE("derived profiles: the nearest one is of the same GPU, then model, then memory bandwidth") {
  const std::string folder = default_models_dir() + "/measured";
  const auto nearest = [&](const ModelOnGpu& target) {
    const auto file = nearest_profile(folder, target, Catalog());
    return file ? std::filesystem::path(*file).stem().string() : "none";
  };
  CHECK(nearest(on("qwen2.5-7b", "h200")) == "h200");
  CHECK(nearest(on("llama-3.1-8b", "h100")) == "h100");
  ModelOnGpu slow = on("llama-3.1-8b", "h100");
  slow.device.name = "slow", slow.device.hbm_bytes_per_s.value = 3.5e12;
  CHECK(nearest(slow) == "h100");
  slow.device.hbm_bytes_per_s.value = 4.5e12;
  CHECK(nearest(slow) == "h200");
  CHECK(nearest(on("llama-3.1-8b", "rtx-4090")) == "none");
}

}  // namespace
}  // namespace kvtwin
