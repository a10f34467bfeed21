#include "models/files/npz.h"

#include <doctest/doctest.h>

#include <cstring>

namespace kvtwin {
namespace {

std::string npy(const std::string& literal, const std::string& data) {
  std::string bytes("\x93NUMPY\x01\x00", 8);
  bytes += static_cast<char>(literal.size() & 0xff);
  bytes += static_cast<char>(literal.size() >> 8);
  return bytes + literal + data;
}

std::string complaint(const std::string& bytes) {
  const auto r = parse_npy(bytes, "p.npz:x");
  return r ? "" : r.error().text();
}

const std::string kF4 = "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2), }          \n";

}  // namespace

TEST_CASE("npz: arrays of each type are read") {
  const float floats[] = {0.5f, -2};
  std::string data(8, '\0');
  std::memcpy(data.data(), floats, 8);
  const auto array = parse_npy(npy(kF4, data), "x");
  REQUIRE_MESSAGE(array, (array ? std::string() : array.error().text()));
  CHECK(array->shape == std::vector<uint64_t>{1, 2});
  CHECK(array->values == std::vector<double>{0.5, -2});
  const auto bytes = parse_npy(
      npy("{\"shape\": (3,), \"fortran_order\": False, \"descr\": \"|u1\"}", "\x01\xff\x00" + std::string()),
      "x");
  CHECK(!bytes);  // two bytes only: the literal ends at its zero
  const auto three = parse_npy(
      npy("{'shape': (3,), 'fortran_order': False, 'descr': '|u1'}", std::string("\x01\xff\x00", 3)), "x");
  REQUIRE(three);
  CHECK(three->values == std::vector<double>{1, 255, 0});
  const auto scalar = parse_npy(
      npy("{'descr': '<i4', 'fortran_order': False, 'shape': ()}", std::string("\xff\xff\xff\xff", 4)), "x");
  REQUIRE(scalar);
  CHECK(scalar->values == std::vector<double>{-1});
}

TEST_CASE("npz: errors of an array are reported with the value") {
  const auto message = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  const auto literal = [](const char* text) { return npy(text, std::string(8, '\0')); };
  CHECK(message(complaint("PK"), "is not a .npy array"));
  CHECK(message(complaint(std::string("\x93NUMPY\x09\x00\x10\x00\x00\x00", 12)), "version 9"));
  CHECK(message(complaint(std::string("\x93NUMPY\x01\x00\xff\xff{}", 12)),
                "header of 65535 bytes in a file of 12"));
  CHECK(
      message(complaint(literal("{'descr': '<c8', 'fortran_order': False, 'shape': (1,)}")), "type \"<c8\""));
  CHECK(message(complaint(literal("{'descr': '<f4', 'fortran_order': True, 'shape': (2,)}")), "Fortran"));
  CHECK(message(complaint(literal("{'descr': '<f4', 'fortran_order': False, 'shape': (3,)}")),
                "8 bytes of data; its shape and type want 12"));
  CHECK(message(
      complaint(literal("{'descr': '<f4', 'fortran_order': False, 'shape': (4000000000, 4000000000)}")),
      "too large"));
  CHECK(message(complaint(literal("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}")),
                "cannot be read"));
  CHECK(message(complaint(literal("{'descr': '<f4', 'shape': (2,)}")), "cannot be read"));
  CHECK(message(complaint(literal("{'descr': '<f4'")), "cannot be read"));
  CHECK(message(complaint(literal("import os")), "cannot be read"));
  const auto archive = unpack_npz("not a zip", "p.npz");
  REQUIRE(!archive);
  CHECK(message(archive.error().text(), "p.npz"));
}

}  // namespace kvtwin
