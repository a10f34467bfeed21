#include "engine/cuda/device/device_tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "engine/base/check.h"
#include "engine/cuda/device/cuda_check.h"

namespace kvtwin::cuda {
namespace {

constexpr uint32_t kRoomMin = 8;

}  // namespace

DeviceTables::DeviceTables(uint64_t of_requests, uint64_t step)
    : of_requests_(std::min<uint64_t>(of_requests, uint64_t{1} << 30)), free_(33) {
  numbers_.reserve(of_requests_ + step);
  numbers_.resize(of_requests_);
  grow(&device_, Buffer::Kind::kDevice, (of_requests_ + step) * sizeof(uint32_t), "tables of KV entries");
}

void DeviceTables::free(Table* table) {
  if (table->room > 0) free_[static_cast<size_t>(std::bit_width(table->room))].push_back(table->at);
  *table = {};
}

void DeviceTables::renew(Table* table, uint32_t count) {
  free(table);
  const uint32_t room = std::max(kRoomMin, std::bit_ceil(count + 1));
  std::vector<uint32_t>& freed = free_[static_cast<size_t>(std::bit_width(room))];
  if (!freed.empty()) {
    *table = {freed.back(), room, 0};
    freed.pop_back();
  } else if (uint64_t{used_} + room <= of_requests_) {
    *table = {used_, room, 0};
    used_ += room;
  }
}

void DeviceTables::add_range(uint32_t to, uint32_t count) {
  for (uint32_t done = 0; done < count; done += kTableRangeMax) {
    const uint32_t now = std::min(kTableRangeMax, count - done);
    ranges_.push_back({to + done, static_cast<uint32_t>(values_.size()), now});
    const auto first = numbers_.begin() + to + done;
    values_.insert(values_.end(), first, first + now);
  }
}

void DeviceTables::add_to(DeviceLists* lists) {
  ranges_.clear(), values_.clear();
  for (const TableRange& range : unsent_) add_range(range.to, range.count);
  unsent_.clear();
  const uint64_t first = of_requests_ + std::exchange(step_sent_, numbers_.size() - of_requests_);
  add_range(static_cast<uint32_t>(first), static_cast<uint32_t>(numbers_.size() - first));
  ranges_at_ = lists->add(ranges_), values_at_ = lists->add(values_);
}

void DeviceTables::put(const DeviceLists& lists, cudaStream_t stream) {
  grow_device(stream);
  must(update_tables(lists.at(ranges_at_), ranges_at_.count, lists.at(values_at_), device_.as<uint32_t>(),
                     stream),
       "update_tables", 0, [&] { return fmt::format("{} ranges", ranges_at_.count); });
}

// What requests have there stays. Nothing else is in flight: the step's kernels come behind.
void DeviceTables::grow_device(cudaStream_t stream) {
  const uint64_t bytes = numbers_.size() * sizeof(uint32_t), of_requests = of_requests_ * sizeof(uint32_t);
  if (bytes <= device_.bytes()) return;
  Buffer larger;
  grow(&larger, Buffer::Kind::kDevice, bytes, "tables of KV entries");
  must(cudaMemcpyAsync(larger.as<void>(), device_.as<void>(), of_requests, cudaMemcpyDeviceToDevice, stream),
       "copy of tables", of_requests, [] { return std::string(); });
  must(cudaStreamSynchronize(stream), "copy of tables");
  device_ = std::move(larger);
}

}  // namespace kvtwin::cuda
