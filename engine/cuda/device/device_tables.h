// DeviceTables: the tables that say where heads' KV entries lie, on the GPU and on the host, in one space of
// numbers. Its first part has tables of requests: they stay from step to step, and of each only numbers that
// it did not have yet are sent. What follows belongs to the step at hand alone.
//
// A request's table lies in a block of a power of two of numbers; freed blocks are used again for tables of
// their size. Where no block is left, a table is written anew in every step that reads it.

#ifndef KVTWIN_ENGINE_CUDA_DEVICE_DEVICE_TABLES_H_
#define KVTWIN_ENGINE_CUDA_DEVICE_DEVICE_TABLES_H_

#include <cstdint>
#include <vector>

#include "engine/cuda/device/device_lists.h"
#include "kernels/cache_ops/step_tables.h"

namespace kvtwin::cuda {

class DeviceTables {
 public:
  // A table that stays. `sent`: so many of its numbers are on the GPU, or marked to be sent.
  struct Table {
    uint32_t at = 0, room = 0, sent = 0;
  };

  DeviceTables() = default;
  // Room for so many numbers of requests, and of a step.
  DeviceTables(uint64_t of_requests, uint64_t step);

  // A new step, or a new compression: what belonged to the one before is gone.
  void clear_step() { numbers_.resize(of_requests_), step_sent_ = 0; }
  // All numbers by their place. Those of the step are added behind the last one.
  std::vector<uint32_t>& numbers() { return numbers_; }
  uint32_t operator[](size_t at) const { return numbers_[at]; }
  uint32_t size() const { return static_cast<uint32_t>(numbers_.size()); }
  void add(uint32_t number) { numbers_.push_back(number); }

  // Where a table of number(0) ... number(count - 1) stands, until the end of the step. number(i) is asked
  // for i >= table->sent alone: the others are as they were sent.
  template <typename Number>
  uint32_t keep(Table* table, uint32_t count, const Number& number) {
    if (count > table->room) renew(table, count);
    if (table->room == 0) {
      const uint32_t at = size();
      for (uint32_t i = 0; i < count; ++i) add(number(i));
      return at;
    }
    if (table->sent < count) unsent_.push_back({table->at + table->sent, 0, count - table->sent});
    for (; table->sent < count; ++table->sent) numbers_[table->at + table->sent] = number(table->sent);
    return table->at;
  }
  void free(Table* table);

  // Adds what is not on the GPU yet to `lists`; once these are sent, put() completes the tables with it.
  void add_to(DeviceLists* lists);
  void put(const DeviceLists& lists, cudaStream_t stream);
  // Stays while tables fit the room that was given.
  uint32_t* on_device() const { return device_.as<uint32_t>(); }

 private:
  void renew(Table* table, uint32_t count);
  void add_range(uint32_t to, uint32_t count);
  void grow_device(cudaStream_t stream);

  uint64_t of_requests_ = 0;                 // numbers of requests
  uint32_t used_ = 0;                        // of these: in blocks, used or free
  std::vector<std::vector<uint32_t>> free_;  // blocks, by the logarithm of their size
  std::vector<uint32_t> numbers_;
  std::vector<TableRange> unsent_;  // of requests
  uint64_t step_sent_ = 0;          // so many numbers of the step are on the GPU
  // What is sent next.
  std::vector<TableRange> ranges_;
  std::vector<uint32_t> values_;
  ListAt<TableRange> ranges_at_;
  ListAt<uint32_t> values_at_;
  Buffer device_;
};

}  // namespace kvtwin::cuda

#endif  // KVTWIN_ENGINE_CUDA_DEVICE_DEVICE_TABLES_H_
