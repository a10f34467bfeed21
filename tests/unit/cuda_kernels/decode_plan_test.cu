// Plans of several layers in one launch equal those of each layer alone, byte by byte.

#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstring>
#include <random>

#include "kernels/attention/decode_plan_layers.h"
#include "kernels/bench/decode_problem.cuh"
#include "tests/support/gpu_main.h"

namespace kvtwin::test {
namespace {

TEST_CASE("plans of several layers made together equal those made one by one") {
  std::mt19937 random(5);
  for (const uint32_t sequences : {1u, 7u, 256u, 3000u, 9000u}) {
    for (const uint32_t layers : {1u, 3u, 33u}) {
      CAPTURE(sequences);
      CAPTURE(layers);
      const DecodeShape shape{128, 4, 16, 8, sequences, 132};
      const size_t own = decode_plan_bytes(shape), stride = (own + 255) / 256 * 256;
      std::vector<DecodeSequence> table(size_t{layers} * sequences);
      for (uint32_t i = 0; i < table.size(); ++i)
        table[i] = {i, static_cast<uint32_t>(random() % 1000), static_cast<uint32_t>(random() % 500), i % 8};
      const DeviceArray<DecodeSequence> on_device(table);
      const DeviceArray<char> together(std::vector<char>(stride * layers, 0)),
          alone(std::vector<char>(own, 0));
      DecodeArgs args;
      args.table = on_device.get(), args.plan = together.get();
      KVT_CUDA(plan_decode_layers(shape, args, layers, stride, nullptr));
      const std::vector<char> plans = together.read();
      for (uint32_t l = 0; l < layers; ++l) {
        KVT_CUDA(cudaMemset(alone.get(), 0, own));
        args.table = on_device.get() + size_t{l} * sequences, args.plan = alone.get();
        KVT_CUDA(plan_attention_decode(shape, args, nullptr));
        CHECK(std::memcmp(alone.read().data(), plans.data() + l * stride, own) == 0);
      }
    }
  }
}

}  // namespace
}  // namespace kvtwin::test

int main(int argc, char** argv) { return kvtwin::testing::run_on_gpu(argc, argv, kvtwin::test::gpus()); }
