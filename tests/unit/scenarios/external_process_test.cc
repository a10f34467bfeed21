#include "scenarios/load/external_process.h"

#include <doctest/doctest.h>

#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/scoring/score.h"
#include "tests/support/folder.h"

namespace kvtwin {
namespace {

// Scores entries by minus the sum of layer, position and the first number of the key, without NumPy.
constexpr char kProgram[] = R"(
import struct, sys
def array():
    prologue = sys.stdin.buffer.read(10)
    if not prologue:
        sys.exit(0)
    header = eval(sys.stdin.buffer.read(prologue[8] + 256 * prologue[9]))
    count = 1
    for size in header['shape']:
        count *= size
    item = int(header['descr'][2])
    kind = {'<i8': 'q', '<f4': 'f'}[header['descr']]
    return header['shape'], struct.unpack(f'<{count}{kind}', sys.stdin.buffer.read(count * item))
while True:
    (_, layer), (shape, at), (size, keys), _, _ = array(), array(), array(), array(), array()
    scores = [-(layer[0] + p + keys[i * size[2]]) for i, p in enumerate(at)]
    text = str({'descr': '<f4', 'fortran_order': False, 'shape': shape}).ljust(117) + '\n'
    out = b'\x93NUMPY\x01\x00' + struct.pack('<H', len(text)) + text.encode()
    sys.stdout.buffer.write(out + struct.pack(f'<{len(scores)}f', *scores))
    sys.stdout.buffer.flush()
)";

struct Entries {
  std::vector<float> keys, values, queries;
  std::vector<uint32_t> positions{4, 5, 9, 4, 6, 7};
  kernels::ScoreInputs in;

  explicit Entries(uint32_t dim = 4) {
    for (uint32_t i = 0; i < 2 * 3 * dim; ++i) keys.push_back(static_cast<float>(i)), values.push_back(1.0f);
    queries.assign(size_t{4} * 2 * dim, 0.5f);
    in.layer = 7;
    in.k = kernels::packed_heads(keys, 2, 3, dim), in.v = kernels::packed_heads(values, 2, 3, dim);
    in.q = kernels::packed_heads(queries, 4, 2, dim);
    in.positions = {3, positions};
  }
};

std::string failure_of(const std::string& command, uint32_t dim = 4) {
  const Entries entries(dim);
  std::vector<float> scores(6);
  try {
    external_process(command)->score(entries.in, kernels::packed_scores(scores, 2, 3));
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("external scorer: a program gets positions, keys, values and queries, and its scores are used") {
  const testing::Folder folder;
  const std::string path = folder.path() + "/scorer.py";
  std::ofstream(path) << kProgram;
  const auto scorer = external_process("python3 " + path);
  const Entries entries;
  for (int times = 0; times < 2; ++times) {
    std::vector<float> scores(6);
    scorer->score(entries.in, kernels::packed_scores(scores, 2, 3));
    CHECK(scores == std::vector<float>{-11, -16, -24, -23, -29, -34});
  }
}

TEST_CASE("external scorer: a program that ends or answers with something else is named, with the reason") {
  CHECK(failure_of("exit 3").find("policies.scorer_options.command \"exit 3\": it ended") == 0);
  CHECK(failure_of("no_such_program_here").find("it ended") != std::string::npos);
  CHECK(failure_of("cat").find("no array of float32 or float64") != std::string::npos);
  CHECK(failure_of("echo not an array at all; cat > /dev/null").find("no array of .npy") !=
        std::string::npos);
}

// Arrays of several MB do not fit into the sockets' buffers.
TEST_CASE("external scorer: a program that writes before it has read everything is not waited for forever") {
  constexpr uint32_t kWide = 200'000;
  CHECK(failure_of("cat", kWide).find("no array of float32 or float64") != std::string::npos);
  CHECK(failure_of("head -c 1000 > /dev/null", kWide).find("it ended before all arrays were read") !=
        std::string::npos);
}

}  // namespace kvtwin
