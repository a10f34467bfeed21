#include "models/weights/safetensors.h"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "engine/base/prng.h"
#include "tests/support/folder.h"

namespace kvtwin {
namespace {

std::span<const std::byte> bytes_of_text(const std::string& text) { return std::as_bytes(std::span(text)); }

// A file with this header and `data` bytes of tensors.
std::string file_of(const std::string& header, size_t data) {
  std::string out(8, '\0');
  for (size_t i = 0; i < 8; ++i) out[i] = static_cast<char>(header.size() >> (8 * i) & 0xff);
  return out + header + std::string(data, '\1');
}

using testing::Folder;

TEST_CASE("safetensors: a written file reads back, tensor by tensor") {
  const std::vector<float> a = {1, -2.5f, 3e-30f, INFINITY};
  const std::vector<uint16_t> b = {0x3f80, 0xc000};  // bf16: 1, -2
  const std::vector<NamedTensor> tensors = {{"z", {TensorType::kF32, {2, 2}, std::as_bytes(std::span(a))}},
                                            {"a", {TensorType::kBf16, {2}, std::as_bytes(std::span(b))}},
                                            {"none", {TensorType::kF32, {0, 7}, {}}}};
  const Folder folder;
  const std::string path = folder.path() + "/model.safetensors";
  REQUIRE(write_safetensors(path, tensors));
  const auto read = Checkpoint::open(folder.path());
  REQUIRE_MESSAGE(read, (read ? std::string() : read.error().text()));
  REQUIRE(read->tensors().size() == 3);
  CHECK(read->tensors()[0].name == "a");
  CHECK(read_floats(*read->find("z")) == a);
  CHECK(read_floats(*read->find("a")) == std::vector<float>{1, -2});
  CHECK(read->find("none")->shape == std::vector<uint64_t>{0, 7});
  CHECK(read->find("b") == nullptr);
}

TEST_CASE("safetensors: half-precision numbers are converted exactly, including subnormals and infinities") {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    std::byte raw[2];
    std::memcpy(raw, &half, 2);
    float got = 0;
    read_floats({TensorType::kF16, {1}, raw}, 0, 1, &got);
    const int exponent = (half >> 10) & 31, fraction = half & 1023;
    double right = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
    if (exponent == 31) right = fraction == 0 ? INFINITY : NAN;
    if ((half & 0x8000) != 0) right = -right;
    const bool same = std::isnan(right) ? std::isnan(got) : static_cast<double>(got) == right;
    if (!same) FAIL("half " << bits << " became " << got << ", not " << right);
  }
}

TEST_CASE("safetensors: hostile bytes are refused with a sentence that names the error") {
  const std::string one = R"({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}})";
  CHECK(parse_safetensors(bytes_of_text(file_of(one, 8)), "x").has_value());
  const struct {
    std::string bytes;
    const char* message;
  } rows[] = {
      {"abc", "x: is 3 bytes long"},
      {std::string(8, '\xff') + "{}", "x: has a header of 18446744073709551615 bytes"},
      {file_of(one, 8).substr(0, 40), "x: has a header of 61 bytes"},
      {file_of("[]", 0), "x: has a header that is no JSON object"},
      {file_of("{\"a\": ", 0), "x: has a header that is no JSON object"},
      {file_of(std::string(100'000, '['), 0), "x: has a header that is no JSON object"},
      {file_of(R"({"a": 1})", 0), "x: a: is no object"},
      {file_of(R"({"a": {"shape": [2], "data_offsets": [0, 8]}})", 8), "x: a: has no dtype"},
      {file_of(R"({"a": {"dtype": "F32", "data_offsets": [0, 8]}})", 8), "x: a: has no shape"},
      {file_of(R"({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0]}})", 8),
       "x: a: has no data_offsets"},
      {file_of(R"({"a": {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}})", 8),
       "x: a: has a shape that is not of whole numbers"},
      {file_of(R"({"a": {"dtype": "F32", "shape": [4294967296, 4294967296], "data_offsets": [0, 8]}})", 8),
       "x: a: has a shape that no tensor can have"},
      {file_of(R"({"a": {"dtype": "F32", "shape": [9223372036854775807], "data_offsets": [0, 8]}})", 8),
       "x: a: has 8 bytes"},
      {file_of(R"({"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}})", 8),
       "x: a: has 8 bytes; 3 elements of F32 need 12"},
      {file_of(one, 4), "x: a: lies at bytes 0 to 8; the file has 4 bytes of tensors"},
      {file_of(one, 12), "x: has 4 bytes behind its last tensor"},
      {file_of(R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [8, 4]}})", 8),
       "x: a: lies at bytes 8 to 4"},
      {file_of(R"({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
                   "b": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}})",
               8),
       "x: b: overlaps"},
      {file_of(R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
                   "b": {"dtype": "F32", "shape": [1], "data_offsets": [8, 12]}})",
               12),
       "x: b: leaves a hole of 4 bytes"},
  };
  for (const auto& row : rows) {
    const auto read = parse_safetensors(bytes_of_text(row.bytes), "x");
    REQUIRE_MESSAGE(!read, row.message);
    CHECK_MESSAGE(read.error().text().find(row.message) == 0, read.error().text());
  }
}

TEST_CASE("safetensors: a checkpoint's index joins shards, and may not lead out of its folder") {
  const auto shard = [](const std::string& name) {
    return file_of("{\"" + name + R"(": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}})", 4);
  };
  const Folder folder;
  folder.write("s1", shard("a")), folder.write("s2", shard("b"));
  const auto open = [&](const std::string& map) {
    folder.write("model.safetensors.index.json", R"({"weight_map": {)" + map + "}}");
    return Checkpoint::open(folder.path());
  };
  const auto whole = open(R"("b": "s2", "a": "s1")");
  REQUIRE(whole);
  CHECK(whole->find("a") != nullptr);
  CHECK(whole->find("b") != nullptr);
  const auto message = [&](const std::string& map, const std::string& what) {
    const auto read = open(map);
    REQUIRE_MESSAGE(!read, map);
    CHECK_MESSAGE(read.error().text().find(what) != std::string::npos, read.error().text());
  };
  message(R"("a": "s2")", "does not hold a");
  message(R"("a": "s3")", "cannot be opened");
  message(R"("a": "../s1")", "puts a into no file beside it");
  message(R"("a": 7)", "puts a into no file beside it");
  folder.write("model.safetensors.index.json", "{}");
  CHECK(Checkpoint::open(folder.path()).error().text().find("has no weight_map") != std::string::npos);
  CHECK(Checkpoint::open(folder.path() + "/nowhere").error().text().find("cannot be opened") !=
        std::string::npos);
  CHECK(Checkpoint::open("/dev/null").error().text().find("no regular file") != std::string::npos);
}

}  // namespace
}  // namespace kvtwin
