// The main function of a test that needs a GPU. Without one it prints why and exits with 77 (skipped).

#ifndef KVTWIN_TESTS_SUPPORT_GPU_MAIN_H_
#define KVTWIN_TESTS_SUPPORT_GPU_MAIN_H_

#include <doctest/doctest.h>

#include <cstdio>

namespace kvtwin::testing {

// `devices`: the number of GPUs present.
inline int run_on_gpu(int argc, char** argv, int devices) {
  if (devices == 0) {
    std::printf("skipped: there is no GPU here\n");
    return 77;
  }
  return doctest::Context(argc, argv).run();
}

}  // namespace kvtwin::testing

#endif  // KVTWIN_TESTS_SUPPORT_GPU_MAIN_H_
