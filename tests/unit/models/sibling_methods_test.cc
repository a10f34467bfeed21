#include "models/cost_tables/sibling_methods.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>

#include "models/cost_tables/method_cost.h"

namespace kvtwin {
namespace {

MeasuredMethod of_steps(double us, double listed_us) {
  MeasuredMethod out{"snapkv", "small", {{name_of(MethodTerm::kStep), us}}, 10, 0.01, 0.03};
  if (listed_us > 0) out.terms.push_back({name_of(MethodTerm::kListed), listed_us});
  return out;
}

TEST_CASE("siblings: the mean of calibrations, term by term, without the least time of a step") {
  MeasuredMethod first = of_steps(10, 0), second = of_steps(20, 6);
  first.error_p90 = 0.08;
  second.terms.push_back({name_of(MethodTerm::kRecorded), 900});
  const MeasuredMethod mean = mean_of_calibrations(std::vector{first, second});
  CHECK(price_of(mean, MethodTerm::kStep) == doctest::Approx(15));
  CHECK(price_of(mean, MethodTerm::kListed) == doctest::Approx(3));
  CHECK(price_of(mean, MethodTerm::kRecorded) == 0);
  CHECK(mean.terms.size() == 2);
  CHECK(mean.steps == 20);
  CHECK(mean.error_p90 == doctest::Approx(0.08));
}

TEST_CASE("siblings: of a folder, the profiles of GPUs with as many SMs that hold the method for the model") {
  const auto folder = std::filesystem::temp_directory_path() / "kvtwin_sibling_methods_test";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  const auto write = [&](const std::string& file, const std::string& gpu, uint32_t sms, double us) {
    MeasuredDevice device;
    device.gpu = gpu, device.sm_count = sms, device.model = "small";
    device.methods = {of_steps(us, 0)};
    std::ofstream(folder / (file + ".textproto")) << measured_device_textproto(device);
  };
  write("a", "GPU A", 132, 10);
  write("b", "GPU B", 132, 30);
  write("b_again", "GPU B", 132, 50);
  write("c", "GPU C", 108, 1000);
  std::ofstream(folder / "broken.textproto") << "gpu: ";
  MeasuredDevice here;
  here.sm_count = 132;
  LlmSpec llm;
  llm.name = "small";
  const auto siblings = [&](const std::string& from, const std::string& method) {
    return sibling_method(from, here, method, llm, Catalog());
  };
  const auto found = siblings(folder.string(), "snapkv");
  REQUIRE(found);
  CHECK(found->gpus == std::vector<std::string>{"GPU A", "GPU B"});
  CHECK(price_of(found->method, MethodTerm::kStep) == doctest::Approx(30));
  CHECK(!siblings(folder.string(), "quest"));
  llm.name = "large";  // the catalog does not know "small", so nothing can be derived
  CHECK(!siblings(folder.string(), "snapkv"));
  llm.name = "small", here.sm_count = 78;
  CHECK(!siblings(folder.string(), "snapkv"));
  CHECK(!siblings((folder / "none").string(), "snapkv"));
  std::filesystem::remove_all(folder);
}

TEST_CASE("siblings: calibrations with another model count by layers and heads, if none is of this one") {
  const Catalog catalog;
  const LlmSpec llama = catalog.llm("llama-3.1-8b").value(), qwen = catalog.llm("qwen2.5-7b").value();
  MeasuredMethod method{"snapkv", "llama-3.1-8b", {}, 10, 0.01, 0.03};
  for (const MethodTerm term :
       {MethodTerm::kCompression, MethodTerm::kChunkTokens, MethodTerm::kHeld, MethodTerm::kPageNow})
    method.terms.push_back({name_of(term), 8});
  const MeasuredMethod derived = method_of_model(method, llama, qwen);
  CHECK(derived.model == "qwen2.5-7b");
  CHECK(price_of(derived, MethodTerm::kCompression) == doctest::Approx(8 * 28.0 / 32));
  CHECK(price_of(derived, MethodTerm::kChunkTokens) == doctest::Approx(8 * 28.0 / 32 * 28 / 32));
  CHECK(price_of(derived, MethodTerm::kHeld) == doctest::Approx(8 * 28.0 / 32 / 2));
  CHECK(price_of(derived, MethodTerm::kPageNow) == 8);

  MeasuredDevice here;
  here.sm_count = 132, here.gpu = "GPU", here.methods = {method};
  const auto found = sibling_method("no such folder", here, "snapkv", qwen, catalog);
  REQUIRE(found);
  CHECK(found->models == std::vector<std::string>{"llama-3.1-8b"});
}

TEST_CASE("siblings: prices follow the host's speed, but those of recalled pages do not") {
  const Catalog catalog;
  const LlmSpec llama = catalog.llm("llama-3.1-8b").value();
  MeasuredMethod method{"snapkv", llama.name, {}, 10, 0.01, 0.03};
  for (const MethodTerm term : {MethodTerm::kStep, MethodTerm::kHeld, MethodTerm::kPageNow})
    method.terms.push_back({name_of(term), 8});
  const auto device = [&](const std::string& gpu, const std::string& model, double launched_us) {
    MeasuredDevice out;
    out.gpu = gpu, out.sm_count = 132, out.model = model;
    if (launched_us > 0) {
      const Measured few{launched_us, launched_us, launched_us}, many{9e3, 9e3, 9e3};
      out.tables = {{"launched host", model, {1, 2, 4}, {}, {few, few, many}}};
    }
    return out;
  };
  const auto folder = std::filesystem::temp_directory_path() / "kvtwin_sibling_hosts_test";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  MeasuredDevice other = device("GPU A", llama.name, 320);
  other.methods = {method};
  std::ofstream(folder / "a.textproto") << measured_device_textproto(other);
  const struct {
    MeasuredDevice here;
    double ratio;
  } rows[] = {
      {device("GPU B", llama.name, 480), 1.5},
      {device("GPU B", llama.name, 0), 1},       // not measured
      {device("GPU B", llama.name, 6400), 2},    // not beyond a factor of two
      {device("GPU B", "qwen2.5-7b", 280), 1},   // as long for each of its 28 layers
      {device("GPU B", "no such model", 99), 1}  // its layers are not known
  };
  for (const auto& row : rows) {
    const auto found = sibling_method(folder.string(), row.here, "snapkv", llama, catalog);
    REQUIRE(found);
    CHECK(price_of(found->method, MethodTerm::kStep) == doctest::Approx(8 * row.ratio));
    CHECK(price_of(found->method, MethodTerm::kHeld) == doctest::Approx(8 * row.ratio));
    CHECK(price_of(found->method, MethodTerm::kPageNow) == 8);
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace kvtwin
