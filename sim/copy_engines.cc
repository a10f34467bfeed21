#include "sim/copy_engines.h"

#include <algorithm>
#include <cmath>

#include "engine/base/check.h"

namespace kvtwin::sim {
namespace {

// The whole nanosecond at which an end that SimGrid saw at `ns` is reported. Rounded up, so that nothing is
// reported before its end; a copy that ran alone ends within the margin of a whole nanosecond.
Instant instant_of(double ns) { return {static_cast<int64_t>(std::ceil(ns - kClockMarginNs))}; }

}  // namespace

CopyEngines::CopyEngines(const PlatformSpec& spec, const std::vector<Place>& places, SimGrid* grid, Done done,
                         uint32_t sources)
    : grid_(grid), done_(std::move(done)) {
  for (const Place& place : places) {
    KVT_CHECK(place.gpus >= 1 && place.gpu_first + place.gpus <= gpus_of(spec));
    CopyQueues copy_queues;
    for (uint32_t gpu = place.gpu_first; gpu < place.gpu_first + place.gpus; ++gpu) {
      const uint32_t socket = socket_of(spec, gpu);  // each GPU's part lies in the memory next to it
      const PlatformSpec& node = *node_of(spec, gpu).node;
      copy_queues.in.push_back(add_lane(grid->host_to_gpu(socket, gpu), node.copy_overhead_in));
      copy_queues.out.push_back(add_lane(grid->gpu_to_host(gpu, socket), node.copy_overhead_out));
    }
    if (spec.disk_read_gb_per_s > 0) {
      const uint32_t socket = socket_of(spec, place.gpu_first);
      copy_queues.to_disk.push_back(add_lane(grid->host_to_disk(socket), spec.disk_latency));
      for (uint32_t gpu = place.gpu_first; gpu < place.gpu_first + place.gpus; ++gpu) {
        copy_queues.from_disk.push_back(add_lane(grid->disk_to_gpu(gpu), spec.disk_latency));
      }
    }
    places_.push_back(std::move(copy_queues));
  }
  add_ways(spec, places, sources);
  grid->on_done([this](Token token) { on_done(token); });
}

void CopyEngines::add_ways(const PlatformSpec& spec, const std::vector<Place>& places, uint32_t sources) {
  for (uint32_t from = 0; from < sources; ++from) {
    for (uint32_t to = sources; to < places.size(); ++to) {
      const Place &a = places[from], &b = places[to];
      const uint32_t parts = std::max(a.gpus, b.gpus);
      for (uint32_t i = 0; i < parts; ++i) {
        const uint32_t target = b.gpu_first + i * b.gpus / parts;
        const RouteId route = grid_->gpu_to_gpu(a.gpu_first + i * a.gpus / parts, target);
        ways_[{from, to}].push_back(add_lane(route, node_of(spec, target).node->copy_overhead_in));
      }
    }
  }
}

uint32_t CopyEngines::add_lane(RouteId route, Duration overhead) {
  copy_queues_.push_back({.route = route, .overhead = overhead, .waiting = {}, .running = false});
  return static_cast<uint32_t>(copy_queues_.size() - 1);
}

const std::vector<uint32_t>& CopyEngines::lanes_for(uint32_t place, Tier source, Tier target) const {
  const CopyQueues& copy_queues = places_[place];
  if (source == Tier::kHost && target == Tier::kGpu) return copy_queues.in;
  if (source == Tier::kGpu && target == Tier::kHost) return copy_queues.out;
  if (source == Tier::kHost && target == Tier::kDisk) return copy_queues.to_disk;
  KVT_CHECK(source == Tier::kDisk && target == Tier::kGpu);
  return copy_queues.from_disk;
}

void CopyEngines::start(Instant now, uint32_t place, Tier source, Tier target, uint64_t bytes, uint64_t id) {
  start_on(now, lanes_for(place, source, target), bytes, id);
}

void CopyEngines::start_between(Instant now, uint32_t from, uint32_t to, uint64_t bytes, uint64_t id) {
  const auto way = ways_.find({from, to});
  KVT_CHECK(way != ways_.end());
  start_on(now, way->second, bytes, id);
}

void CopyEngines::start_on(Instant now, const std::vector<uint32_t>& copy_queues, uint64_t bytes,
                           uint64_t id) {
  KVT_CHECK(bytes > 0);
  KVT_CHECK(!copy_queues.empty());
  if (transfers_free_.empty()) {
    transfers_free_.push_back(static_cast<uint32_t>(transfers_.size()));
    transfers_.emplace_back();
  }
  const uint32_t transfer = transfers_free_.back();
  transfers_free_.pop_back();
  const uint64_t parts = std::min<uint64_t>(copy_queues.size(), bytes);  // no empty copies
  transfers_[transfer] = {id, static_cast<uint32_t>(parts)};
  ++transfers_left_;
  for (uint64_t part = 0; part < parts; ++part) {
    const uint64_t fraction = bytes / parts + (part < bytes % parts ? 1 : 0);
    CopyQueue& copy_queue = copy_queues_[copy_queues[part]];
    copy_queue.waiting.push_back({fraction, transfer});
    if (!copy_queue.running) start_front(now, copy_queues[part]);
  }
}

void CopyEngines::start_front(Instant now, uint32_t lane_index) {
  CopyQueue& copy_queue = copy_queues_[lane_index];
  copy_queue.running = true;
  const Instant issued = now + copy_queue.overhead;
  if (copy_queue.overhead.ns == 0) return issue(issued, lane_index);
  grid_->at(static_cast<double>(issued.ns), [this, issued, lane_index] { issue(issued, lane_index); });
}

void CopyEngines::issue(Instant now, uint32_t lane_index) {
  const CopyQueue& copy_queue = copy_queues_[lane_index];
  // The integer clock is the master: a copy that has its path to itself must end at a whole nanosecond,
  // `end`, whatever SimGrid's clock shows now. So the bytes are adjusted to the remaining time, by less than
  // half a nanosecond plus the error of SimGrid's clock. That error therefore never accumulates.
  const double rate = grid_->gb_per_s(copy_queue.route);
  const Instant end = now + copy_time(copy_queue.waiting.front().bytes, rate);
  const double bytes = (static_cast<double>(end.ns) - grid_->now_ns()) * rate;
  grid_->start_copy(copy_queue.route, static_cast<uint64_t>(std::max<int64_t>(1, std::llround(bytes))),
                    lane_index);
}

void CopyEngines::finished(uint32_t lane_index) {
  CopyQueue& copy_queue = copy_queues_[lane_index];
  const Instant now = instant_of(grid_->now_ns());
  const uint32_t index = copy_queue.waiting.front().transfer;
  copy_queue.waiting.pop_front();
  copy_queue.running = false;
  if (!copy_queue.waiting.empty()) start_front(now, lane_index);
  Transfer& transfer = transfers_[index];
  if (--transfer.copies_left > 0) return;
  transfers_free_.push_back(index);
  --transfers_left_;
  done_(now, transfer.id);
}

}  // namespace kvtwin::sim
