// The reason for each of our SimGrid settings: the effect of leaving it out, shown with SimGrid alone. A
// later SimGrid that behaves differently fails here.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <simgrid/kernel/Timer.hpp>
#include <simgrid/s4u.hpp>
#include <string>
#include <vector>

#include "tests/unit/sim/in_child.h"

namespace sg4 = simgrid::s4u;
using kvtwin::testing::in_child;

namespace {

const std::vector<std::string> kOurs = {"network/model:CM02", "network/crosstraffic:0",
                                        "network/TCP-gamma:1e15", "surf/precision:1e-12"};

std::vector<std::string> without(const std::string& setting) {
  std::vector<std::string> rest;
  for (const std::string& one : kOurs) {
    if (!one.starts_with(setting)) rest.push_back(one);
  }
  return rest;
}

// Two GPUs on one host memory, and the requested copies. Ends are listed in microseconds in the order
// reported.
struct Node {
  sg4::Host* memory = nullptr;
  sg4::Host* gpus[2] = {};
  std::string log;
  std::vector<sg4::ActivityPtr> retained;

  void copy(const char* name, sg4::Host* from, sg4::Host* to, uint64_t bytes) {
    auto one = sg4::Comm::sendto_init();
    one->set_name(name);
    one->set_payload_size(bytes);
    retained.push_back(one);
    one->set_source(from)->set_destination(to);
  }
  void kernel(const char* name, uint32_t gpu, double seconds) {
    auto one = sg4::Exec::init()->set_flops_amount(seconds);
    one->set_name(name);
    retained.push_back(one);
    one->set_host(gpus[gpu])->vetoable_start();
  }
};

struct Links {
  double gb_per_s = 55;
  double latency[2] = {0, 0};
  double memory_gb_per_s = 100'000;
};

std::string run(const std::vector<std::string>& settings, const Links& links, void (*what)(Node&)) {
  return in_child([&] {
    std::vector<std::string> words{"settings_test", "--log=root.thres:critical"};
    for (const std::string& setting : settings) words.push_back("--cfg=" + setting);
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    int count = static_cast<int>(arguments.size());
    arguments.push_back(nullptr);
    sg4::Engine engine(&count, arguments.data());
    Node node;
    sg4::Activity::on_completion_cb([&](const sg4::Activity& one) {
      node.log += fmt::format("{} {:.4f}\n", one.get_name(), sg4::Engine::get_clock() * 1e6);
    });
    auto* zone = sg4::create_full_zone("node");
    node.memory = zone->create_host("memory", 1.0)->seal();
    auto* memory = zone->create_link("memory", links.memory_gb_per_s * 1e9);
    memory->set_latency(0)->seal();
    for (int i = 0; i < 2; ++i) {
      node.gpus[i] = zone->create_host("gpu" + std::to_string(i), 1.0)->seal();
      const auto* pcie = zone->create_split_duplex_link("pcie" + std::to_string(i), links.gb_per_s * 1e9)
                             ->set_latency(links.latency[i])
                             ->seal();
      zone->add_route(node.memory->get_netpoint(), node.gpus[i]->get_netpoint(), nullptr, nullptr,
                      {sg4::LinkInRoute(memory),
                       {dynamic_cast<const sg4::SplitDuplexLink*>(pcie), sg4::LinkInRoute::Direction::UP}},
                      true);
    }
    zone->seal();
    what(node);
    engine.run();
    return node.log;
  });
}

}  // namespace

TEST_CASE("settings: TCP-gamma would cap a fast link with a latency at 105 GB/s") {
  const auto copy = [](Node& node) { node.copy("copy", node.memory, node.gpus[0], 1'000'000'000); };
  const Links links{.gb_per_s = 900, .latency = {20e-6, 0}};
  CHECK(run(kOurs, links, copy) == "copy 1131.1111\n");
  // 4,194,304 bytes / (2 x 20 us) = 104.9 GB/s.
  CHECK(run(without("network/TCP-gamma"), links, copy) == "copy 9556.7432\n");
}

TEST_CASE("settings: cross traffic would make each direction pay 5 % for the other") {
  const auto both = [](Node& node) {
    node.copy("in", node.memory, node.gpus[0], 55'000'000);
    node.copy("out", node.gpus[0], node.memory, 55'000'000);
  };
  CHECK(run(kOurs, {}, both) == "out 1000.0000\nin 1000.0000\n");  // the last started is reported first
  CHECK(run(without("network/crosstraffic"), {}, both).find("1050.0000") != std::string::npos);
}

TEST_CASE("settings: the default model LV08 would take 3 % of every link") {
  const auto copy = [](Node& node) { node.copy("copy", node.memory, node.gpus[0], 55'000'000); };
  CHECK(run(kOurs, {}, copy) == "copy 1000.0000\n");
  CHECK(run(without("network/model"), {}, copy) == "copy 1030.9278\n");
}

TEST_CASE("settings: events 0.9 ns apart would merge") {
  const auto kernels = [](Node& node) {
    node.kernel("a", 0, 1.0e-6);
    node.kernel("b", 1, 1.0009e-6);
  };
  CHECK(run(kOurs, {}, kernels) == "a 1.0000\nb 1.0009\n");
  CHECK(run(without("surf/precision"), {}, kernels).find("b 1.0000\n") != std::string::npos);
}

TEST_CASE("settings: a link is divided in proportion to 1 / latency, so all latencies are 0") {
  const auto both = [](Node& node) {
    node.copy("a", node.memory, node.gpus[0], 10'000'000);
    node.copy("b", node.memory, node.gpus[1], 10'000'000);
  };
  CHECK(run(kOurs, {.memory_gb_per_s = 20}, both) == "b 1000.0000\na 1000.0000\n");
  const std::string unequal = run(kOurs, {.latency = {1e-6, 10e-6}, .memory_gb_per_s = 20}, both);
  const double first = std::stod(unequal.substr(2));
  CHECK(unequal.starts_with("a "));
  CHECK(first < 600);  // about 10 / 11 of the link instead of half
}

TEST_CASE("settings: an empty copy never starts, and SimGrid does not report it") {
  const auto empty = [](Node& node) {
    node.copy("empty", node.memory, node.gpus[0], 0);
    node.copy("one byte", node.memory, node.gpus[0], 1);
  };
  CHECK(run(kOurs, {}, empty) == "one byte 0.0000\n");
}

TEST_CASE("settings: run_until() stops up to 10 us early, a timer is exact") {
  const auto early = [](Node& node) {
    node.kernel("kernel", 0, 100e-6);
    simgrid::kernel::timer::Timer::set(
        108e-6, [&node] { node.log += fmt::format("timer {:.4f}\n", sg4::Engine::get_clock() * 1e6); });
    sg4::Engine::get_instance()->run_until(105e-6);
    node.log += fmt::format("stopped {:.4f}\n", sg4::Engine::get_clock() * 1e6);
  };
  CHECK(run(kOurs, {}, early) == "kernel 100.0000\nstopped 100.0000\ntimer 108.0000\n");
}

TEST_CASE("settings: an activity owned by an actor is reported only when it is waited for") {
  const auto lazy = [](Node& node) {
    sg4::Actor::create("driver", node.memory, [&node] {
      auto one = sg4::this_actor::exec_init(1e-6)->set_host(node.gpus[0]);
      one->set_name("kernel");
      one->vetoable_start();
      sg4::this_actor::sleep_for(10e-6);
      node.log += "slept\n";
      one->wait();
    });
  };
  CHECK(run(kOurs, {}, lazy) == "slept\nkernel 10.0000\n");
}
