// Checks a Perfetto trace: perfetto_check FILE. Prints the number of its slices and its counters; problems go
// to standard error, and the exit status is then 1.

#include <cstdio>
#include <fstream>
#include <iterator>

#include "tests/support/perfetto_trace.h"

int main(int count, char** words) {
  std::ifstream in(count == 2 ? words[1] : "", std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(in), {}};
  const auto trace = kvtwin::testing::read_perfetto(bytes);
  for (const std::string& problem : trace.problem) std::fprintf(stderr, "%s\n", problem.c_str());
  std::printf("%zu slices\n", trace.slices.size());
  for (const auto& [name, values] : trace.counters) std::printf("counter %s\n", name.c_str());
  return trace.problem.empty() ? 0 : 1;
}
