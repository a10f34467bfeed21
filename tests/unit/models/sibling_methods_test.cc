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
  here.sm_count = 132, here.model = "small";
  const auto found = sibling_method(folder.string(), here, "snapkv");
  REQUIRE(found);
  CHECK(found->gpus == std::vector<std::string>{"GPU A", "GPU B"});
  CHECK(price_of(found->method, MethodTerm::kStep) == doctest::Approx(30));
  CHECK(!sibling_method(folder.string(), here, "quest"));
  here.model = "large";
  CHECK(!sibling_method(folder.string(), here, "snapkv"));
  here.model = "small", here.sm_count = 78;
  CHECK(!sibling_method(folder.string(), here, "snapkv"));
  CHECK(!sibling_method((folder / "none").string(), here, "snapkv"));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace kvtwin
