#include "sim/simgrid_adapter.h"

#include <algorithm>
#include <array>
#include <csignal>
#include <exception>
#include <map>
#include <simgrid/Exception.hpp>
#include <simgrid/kernel/Timer.hpp>
#include <simgrid/s4u.hpp>
#include <simgrid/simix.hpp>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/check.h"

// clang-format off
#include <simgrid/version.h>  // last: it is not self-contained
// clang-format on

namespace kvtwin::sim {
namespace {

namespace sg4 = simgrid::s4u;
using KernelTimer = simgrid::kernel::timer::Timer;
using simgrid::kernel::actor::simcall_answered;
using Up = sg4::LinkInRoute::Direction;

// SimGrid's default network model imitates TCP over the Internet: a copy over NVLink takes nine times too
// long, opposite directions slow each other down, and events less than a nanosecond apart merge.
// tests/unit/sim/physics_test.cc pins each of these.
#if SIMGRID_VERSION >= 33400
constexpr const char* kPrecision = "--cfg=precision/timing:1e-12";
#else
constexpr const char* kPrecision = "--cfg=surf/precision:1e-12";
#endif
constexpr std::array kSettings = {
    "kvtwin",   "--cfg=network/model:CM02", "--cfg=network/crosstraffic:0", "--cfg=network/TCP-gamma:1e15",
    kPrecision, "--log=root.thres:critical"};

struct Route {
  sg4::Host* source;
  sg4::Host* target;
  double gb_per_s;
};

// SimGrid holds no reference of its own to an activity, and an activity must not be released in its own
// callback. A slot holds it until the next activity takes the slot.
struct Slot {
  sg4::ActivityPtr activity;
  Token token = 0;
};

}  // namespace

struct SimGrid::State {
  PlatformSpec spec;
  std::unique_ptr<sg4::Engine> engine;
  sg4::NetZone* zone = nullptr;
  std::vector<sg4::Host*> gpus;
  std::vector<sg4::Host*> memories;  // per socket
  sg4::Host* disk = nullptr;
  std::vector<Route> routes;
  std::map<std::pair<sg4::Host*, sg4::Host*>, RouteId> known;  // for look-up only, never iterated
  std::vector<std::unique_ptr<Slot>> slots;
  std::vector<Slot*> free_slots;
  std::function<void(Token)> done;
  sg4::SemaphorePtr wake;
  KernelTimer* alarm = nullptr;
  double alarm_at = 0;  // seconds; valid while alarm != nullptr
  bool asleep = false;
  double began = 0;  // SimGrid's clock when this simulation began, seconds
  static State* current;

  void build();
  void build_routes();
  void build_node(const NodePlace& place, std::vector<const sg4::SplitDuplexLink*>* nics);
  // `down_gb_per_s`: rate in that direction, if different; 0: the same.
  const sg4::SplitDuplexLink* split(const std::string& name, double gb_per_s, double down_gb_per_s = 0);
  void connect(sg4::Host* source, sg4::Host* target, const std::vector<sg4::LinkInRoute>& links);
  RouteId route(sg4::Host* source, sg4::Host* target, double gb_per_s);
  Slot* slot(Token token);
  void finished(const sg4::Activity& activity);
  void arm(double at_ns);
  double seconds(double at_ns) const { return began + at_ns * 1e-9; }
};

SimGrid::State* SimGrid::State::current = nullptr;

void SimGrid::State::build() {
  zone = sg4::create_full_zone("node");
  for (uint32_t i = 0; i < gpus_of(spec); ++i)
    gpus.push_back(zone->create_host("gpu" + std::to_string(i), 1.0)->seal());
  for (uint32_t i = 0; i < sockets_of(spec); ++i) {
    memories.push_back(zone->create_host("memory" + std::to_string(i), 1.0)->seal());
  }
  if (spec.disk_read_gb_per_s > 0) disk = zone->create_host("disk", 1.0)->seal();
  build_routes();
  zone->seal();  // explicitly: SimGrid seals by itself only for the first engine of a process
}

const sg4::SplitDuplexLink* SimGrid::State::split(const std::string& name, double gb_per_s,
                                                  double down_gb_per_s) {
  // All latencies are 0, because SimGrid divides a link in proportion to 1 / latency. The fixed time of a
  // copy is a delay before it (sim/copy_engines.h).
  auto* link = zone->create_split_duplex_link(name, gb_per_s * 1e9);
  link->set_latency(0);
  if (down_gb_per_s > 0) link->get_link_down()->set_bandwidth(down_gb_per_s * 1e9);
  link->seal();
  return link;
}

void SimGrid::State::build_routes() {
  std::vector<const sg4::SplitDuplexLink*> nics(gpus.size(), nullptr);
  const std::vector<NodePlace> nodes = nodes_of(spec);
  for (const NodePlace& place : nodes) build_node(place, &nics);
  for (uint32_t i = 0; i < gpus.size(); ++i) {
    for (uint32_t j = 0; j < i; ++j) {
      if (nics[i] == nullptr || nics[j] == nullptr || node_of(spec, i).index == node_of(spec, j).index)
        continue;
      connect(gpus[i], gpus[j], {{nics[i], Up::UP}, {nics[j], Up::DOWN}});
    }
  }
}

// Links and routes inside one node, and the network cards that lead out of it.
void SimGrid::State::build_node(const NodePlace& place, std::vector<const sg4::SplitDuplexLink*>* nics) {
  const PlatformSpec& node = *place.node;
  const uint32_t socket_end = place.socket_first + node.sockets, gpu_end = place.gpu_first + node.gpus;
  std::map<uint32_t, sg4::Link*> memory_links, both_links;
  std::map<uint32_t, const sg4::SplitDuplexLink*> socket_links, pcies, nvlinks;
  for (uint32_t i = place.socket_first; i < socket_end; ++i) {
    auto* link = zone->create_link("memory" + std::to_string(i), node.host_memory_gb_per_s * 1e9);
    link->set_latency(0)->seal();
    memory_links[i] = link;
    if (node.sockets > 1) socket_links[i] = split("socket" + std::to_string(i), node.socket_link_gb_per_s);
  }
  for (uint32_t i = place.gpu_first; i < gpu_end; ++i) {
    pcies[i] = split("pcie" + std::to_string(i), node.pcie_gb_per_s, node.pcie_out_gb_per_s);
    if (node.pcie_both_gb_per_s > 0) {
      both_links[i] = zone->create_link("both" + std::to_string(i), node.pcie_both_gb_per_s * 1e9);
      both_links[i]->set_latency(0)->seal();
    }
    for (uint32_t s = place.socket_first; s < socket_end; ++s) {
      std::vector<sg4::LinkInRoute> links{sg4::LinkInRoute(memory_links[s])};
      if (const uint32_t home = socket_of(spec, i); home != s) {
        links.emplace_back(socket_links[s], Up::UP);
        links.emplace_back(socket_links[home], Up::DOWN);
      }
      links.emplace_back(pcies[i], Up::UP);
      if (both_links.contains(i)) links.emplace_back(both_links[i]);
      connect(memories[s], gpus[i], links);
    }
    if (node.nic_gb_per_s > 0) (*nics)[i] = split("nic" + std::to_string(i), node.nic_gb_per_s);
    if (node.nvlink_gb_per_s > 0) nvlinks[i] = split("nvlink" + std::to_string(i), node.nvlink_gb_per_s);
    for (uint32_t j = place.gpu_first; j < i; ++j) {
      // UP is the direction from host to GPU of a PCIe link.
      node.nvlink_gb_per_s > 0 ? connect(gpus[i], gpus[j], {{nvlinks[i], Up::UP}, {nvlinks[j], Up::DOWN}})
                               : connect(gpus[i], gpus[j], {{pcies[i], Up::DOWN}, {pcies[j], Up::UP}});
    }
  }
  if (place.index > 0 || disk == nullptr) return;
  const auto link = [&](const char* name, double gb_per_s) {
    auto* made = zone->create_link(name, gb_per_s * 1e9);
    made->set_latency(0)->seal();
    return sg4::LinkInRoute(made);
  };
  const sg4::LinkInRoute reads = link("disk_read", node.disk_read_gb_per_s);
  const sg4::LinkInRoute writes = link("disk_write", node.disk_write_gb_per_s);
  const auto one_way = [&](sg4::Host* source, sg4::Host* target, std::vector<sg4::LinkInRoute> links) {
    zone->add_route(source->get_netpoint(), target->get_netpoint(), nullptr, nullptr, links, false);
  };
  for (uint32_t s = 0; s < node.sockets; ++s) {
    one_way(memories[s], disk, {sg4::LinkInRoute(memory_links[s]), writes});
  }
  for (uint32_t i = 0; i < node.gpus; ++i) {
    one_way(disk, gpus[i], {reads, sg4::LinkInRoute(memory_links[socket_of(spec, i)]), {pcies[i], Up::UP}});
  }
}

void SimGrid::State::connect(sg4::Host* source, sg4::Host* target,
                             const std::vector<sg4::LinkInRoute>& links) {
  zone->add_route(source->get_netpoint(), target->get_netpoint(), nullptr, nullptr, links, true);
}

RouteId SimGrid::State::route(sg4::Host* source, sg4::Host* target, double gb_per_s) {
  const auto [found, is_new] =
      known.try_emplace({source, target}, RouteId{static_cast<uint32_t>(routes.size())});
  if (is_new) routes.push_back({source, target, gb_per_s});
  return found->second;
}

Slot* SimGrid::State::slot(Token token) {
  if (free_slots.empty()) {
    slots.push_back(std::make_unique<Slot>());
    free_slots.push_back(slots.back().get());
  }
  Slot* const slot = free_slots.back();
  free_slots.pop_back();
  slot->token = token;
  return slot;
}

void SimGrid::State::finished(const sg4::Activity& activity) {
  auto* const slot = activity.get_data<Slot>();
  if (slot == nullptr) return;
  done(slot->token);
  free_slots.push_back(slot);  // only now: what `done` starts must not take this slot
}

// A timer in the past, by the fraction of a nanosecond that answered_at() adds, would end the simulation.
static double no_earlier_than_now(double seconds) { return std::max(seconds, sg4::Engine::get_clock()); }

// There is one timer; it is moved when the driver is needed earlier.
void SimGrid::State::arm(double at_ns) {
  const double at = no_earlier_than_now(seconds(at_ns));
  if (alarm != nullptr) {
    if (alarm_at <= at) return;
    alarm->remove();
  }
  alarm_at = at;
  alarm = KernelTimer::set(at, [this] {
    alarm = nullptr;
    wake->release();
  });
}

// SimGrid's first engine takes over Ctrl-C: it would print its actors and end a process that may be an
// interpreter. The handler from before is put back.
static std::unique_ptr<sg4::Engine> make_engine(int* count, char** arguments) {
  struct sigaction before {};
  const bool known = sigaction(SIGINT, nullptr, &before) == 0;
  auto engine = std::make_unique<sg4::Engine>(count, arguments);
  if (known) sigaction(SIGINT, &before, nullptr);
  return engine;
}

SimGrid::SimGrid(const PlatformSpec& spec) : state_(std::make_unique<State>()) {
  KVT_CHECK(State::current == nullptr);
  KVT_CHECK(validate_platform(spec).has_value());
  static bool configured = false;  // settings outlive the engine, and setting them twice is an error
  std::vector<std::string> words(kSettings.begin(), kSettings.end());
  if (configured) words.resize(1);
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  int count = static_cast<int>(arguments.size());
  arguments.push_back(nullptr);
  state_->spec = spec;
  state_->engine = make_engine(&count, arguments.data());
  if (!configured)
    sg4::Activity::on_completion_cb([](const sg4::Activity& activity) {
      if (State::current != nullptr) State::current->finished(activity);
    });
  configured = true;
  State::current = state_.get();
  state_->began = sg4::Engine::get_clock();
  state_->build();
  state_->wake = sg4::Semaphore::create(0);
}

SimGrid::~SimGrid() {
  state_->slots.clear();
  State::current = nullptr;
}

// Rate of a copy between a socket and a GPU that has its path to itself.
static double host_path_gb_per_s(const PlatformSpec& cluster, uint32_t socket, uint32_t gpu, bool to_gpu) {
  const PlatformSpec& node = *node_of(cluster, gpu).node;
  const double pcie = to_gpu || node.pcie_out_gb_per_s == 0 ? node.pcie_gb_per_s : node.pcie_out_gb_per_s;
  double rate = std::min(pcie, node.host_memory_gb_per_s);
  if (node.pcie_both_gb_per_s > 0) rate = std::min(rate, node.pcie_both_gb_per_s);
  if (socket_of(cluster, gpu) != socket) rate = std::min(rate, node.socket_link_gb_per_s);
  return rate;
}

RouteId SimGrid::host_to_gpu(uint32_t socket, uint32_t gpu) {
  State& s = *state_;
  return s.route(s.memories.at(socket), s.gpus.at(gpu), host_path_gb_per_s(s.spec, socket, gpu, true));
}

RouteId SimGrid::gpu_to_host(uint32_t gpu, uint32_t socket) {
  State& s = *state_;
  return s.route(s.gpus.at(gpu), s.memories.at(socket), host_path_gb_per_s(s.spec, socket, gpu, false));
}

RouteId SimGrid::gpu_to_gpu(uint32_t source, uint32_t target) {
  State& s = *state_;
  const double rate = gpu_path_gb_per_s(s.spec, source, target);
  KVT_CHECK(rate > 0 && source != target);
  return s.route(s.gpus.at(source), s.gpus.at(target), rate);
}

RouteId SimGrid::host_to_disk(uint32_t socket) {
  State& s = *state_;
  KVT_CHECK(s.disk != nullptr);
  return s.route(s.memories.at(socket), s.disk,
                 std::min(s.spec.disk_write_gb_per_s, s.spec.host_memory_gb_per_s));
}

RouteId SimGrid::disk_to_gpu(uint32_t gpu) {
  State& s = *state_;
  KVT_CHECK(s.disk != nullptr);
  const double rate = gb_per_s(host_to_gpu(socket_of(s.spec, gpu), gpu));
  return s.route(s.disk, s.gpus.at(gpu), std::min(s.spec.disk_read_gb_per_s, rate));
}

double SimGrid::gb_per_s(RouteId route) const { return state_->routes.at(raw(route)).gb_per_s; }

void SimGrid::on_done(std::function<void(Token)> done) { state_->done = std::move(done); }

void SimGrid::run(std::function<void()> body) {
  // SimGrid ends the process when an actor throws, so exceptions are carried past it.
  std::exception_ptr failed;
  try {
    sg4::Actor::create("driver", state_->memories.front(), [&] {
      try {
        body();
      } catch (const simgrid::ForcefulKillException&) {  // SimGrid's own
        throw;
      } catch (...) {
        failed = std::current_exception();
      }
    });
    state_->engine->run();
  } catch (const simgrid::Exception& problem) {
    check_failed(problem.what(), __FILE__, __LINE__);
  }
  if (failed) std::rethrow_exception(failed);
}

double SimGrid::now_ns() const { return (sg4::Engine::get_clock() - state_->began) * 1e9; }

bool SimGrid::reached(double at_ns) const { return sg4::Engine::get_clock() >= state_->seconds(at_ns); }

void SimGrid::wait_until(double at_ns) {
  simcall_answered([&] { state_->arm(at_ns); });
  wait();
}

void SimGrid::wait() {
  state_->asleep = true;
  state_->wake->acquire();
  state_->asleep = false;
}

void SimGrid::wake_by(double at_ns) {
  if (state_->asleep) state_->arm(at_ns);
}

void SimGrid::at(double at_ns, std::function<void()> then) {
  simcall_answered([&] { KernelTimer::set(no_earlier_than_now(state_->seconds(at_ns)), std::move(then)); });
}

void SimGrid::start_copy(RouteId route, uint64_t bytes, Token token) {
  KVT_CHECK(bytes > 0);  // SimGrid never starts an empty copy, silently
  simcall_answered([&] {
    const Route& path = state_->routes[raw(route)];
    Slot* const slot = state_->slot(token);
    auto copy = sg4::Comm::sendto_init();
    copy->set_data(slot);
    copy->set_payload_size(bytes);
    slot->activity = copy;
    copy->set_source(path.source)->set_destination(path.target);  // this starts it
  });
}

void SimGrid::start_kernel(uint32_t gpu, double ns, Token token) {
  simcall_answered([&] {
    Slot* const slot = state_->slot(token);
    auto kernel = sg4::Exec::init()->set_flops_amount(ns * 1e-9);
    kernel->set_data(slot);
    slot->activity = kernel;
    kernel->set_host(state_->gpus.at(gpu))->vetoable_start();
  });
}

}  // namespace kvtwin::sim
