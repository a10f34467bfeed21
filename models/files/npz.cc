#include "models/files/npz.h"

#include <fmt/format.h>

#include <cstring>
#include <memory>
#include <optional>

#if KVTWIN_HAVE_ARCHIVE
#include <archive.h>
#include <archive_entry.h>
#endif

namespace kvtwin {
namespace {

constexpr size_t kNpyHeaderBytesMax = 1 << 16;
constexpr size_t kDimensionsMax = 8;

// The header is a Python literal: {'descr': '<f4', 'fortran_order': False, 'shape': (1, 32, 8), }.
class HeaderText {
 public:
  explicit HeaderText(std::string_view text) : rest_(text) {}

  bool take(char c) {
    skip_spaces();
    if (rest_.empty() || rest_.front() != c) return false;
    rest_.remove_prefix(1);
    return true;
  }
  std::optional<std::string_view> quoted() {
    skip_spaces();
    if (rest_.empty() || (rest_.front() != '\'' && rest_.front() != '"')) return std::nullopt;
    const size_t end = rest_.find(rest_.front(), 1);
    if (end == std::string_view::npos) return std::nullopt;
    const std::string_view word = rest_.substr(1, end - 1);
    rest_.remove_prefix(end + 1);
    return word;
  }
  bool word(std::string_view expected) {
    skip_spaces();
    if (!rest_.starts_with(expected)) return false;
    rest_.remove_prefix(expected.size());
    return true;
  }
  std::optional<uint64_t> number() {
    skip_spaces();
    uint64_t value = 0;
    size_t digits = 0;
    for (; digits < rest_.size() && rest_[digits] >= '0' && rest_[digits] <= '9'; ++digits) {
      if (digits == 18) return std::nullopt;
      value = value * 10 + static_cast<uint64_t>(rest_[digits] - '0');
    }
    rest_.remove_prefix(digits);
    return digits == 0 ? std::nullopt : std::optional(value);
  }
  bool at_end() {
    skip_spaces();
    return rest_.empty();
  }

 private:
  void skip_spaces() {
    while (!rest_.empty() && (rest_.front() == ' ' || rest_.front() == '\n')) rest_.remove_prefix(1);
  }
  std::string_view rest_;
};

struct Header {
  std::string_view descr;
  bool fortran_order = false;
  std::vector<uint64_t> shape;
};

bool parse_shape(HeaderText* text, std::vector<uint64_t>* shape) {
  if (!text->take('(')) return false;
  while (!text->take(')')) {
    const auto size = text->number();
    if (!size || shape->size() == kDimensionsMax) return false;
    shape->push_back(*size);
    if (!text->take(',')) return text->take(')');
  }
  return true;
}

std::optional<Header> parse_header(std::string_view literal) {
  HeaderText text(literal);
  Header header;
  bool descr = false, order = false, shape = false;
  if (!text.take('{')) return std::nullopt;
  while (!text.take('}')) {
    const auto key = text.quoted();
    if (!key || !text.take(':')) return std::nullopt;
    if (*key == "descr" && !descr) {
      const auto value = text.quoted();
      if (!value) return std::nullopt;
      header.descr = *value;
      descr = true;
    } else if (*key == "fortran_order" && !order) {
      header.fortran_order = text.word("True");
      if (!header.fortran_order && !text.word("False")) return std::nullopt;
      order = true;
    } else if (*key == "shape" && !shape) {
      if (!parse_shape(&text, &header.shape)) return std::nullopt;
      shape = true;
    } else {
      return std::nullopt;
    }
    if (!text.take(',') && !text.take('}')) return std::nullopt;
    if (text.at_end()) break;
  }
  if (!descr || !order || !shape) return std::nullopt;
  return header;
}

template <typename T>
void widen(std::string_view data, std::vector<double>* values) {
  for (size_t i = 0; i < values->size(); ++i) {
    T value;
    std::memcpy(&value, data.data() + i * sizeof(T), sizeof(T));
    (*values)[i] = static_cast<double>(value);
  }
}

struct ItemType {
  std::string_view descr;
  size_t bytes;
  void (*widen)(std::string_view, std::vector<double>*);
};
constexpr ItemType kTypes[] = {{"<f4", 4, widen<float>},   {"<f8", 8, widen<double>},
                               {"<i4", 4, widen<int32_t>}, {"<i8", 8, widen<int64_t>},
                               {"|u1", 1, widen<uint8_t>}, {"|b1", 1, widen<uint8_t>}};

// The header literal and the data after it.
struct Preamble {
  std::string_view literal, data;
};
Result<Preamble> split(std::string_view bytes, const std::string& where) {
  constexpr std::string_view kMagic("\x93NUMPY", 6);
  if (!bytes.starts_with(kMagic) || bytes.size() < 12) return make_error(where, "is not a .npy array");
  const auto byte = [&](size_t i) { return size_t{static_cast<unsigned char>(bytes[i])}; };
  const size_t version = byte(6), start = version == 1 ? 10 : 12;
  if (version < 1 || version > 3)
    return make_error(where, fmt::format("has .npy version {}", version), "1, 2 and 3 are known");
  size_t length = byte(8) | byte(9) << 8;
  if (version > 1) length |= byte(10) << 16 | byte(11) << 24;
  if (length > kNpyHeaderBytesMax || length > bytes.size() - start)
    return make_error(where, fmt::format("has a header of {} bytes in a file of {}", length, bytes.size()));
  return Preamble{bytes.substr(start, length), bytes.substr(start + length)};
}

}  // namespace

Result<NpyArray> parse_npy(std::string_view bytes, const std::string& where) {
  const Result<Preamble> parts = split(bytes, where);
  if (!parts) return tl::unexpected(parts.error());
  const auto header = parse_header(parts->literal);
  if (!header) {
    return make_error(where, "has a header that cannot be read",
                      "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2)}");
  }
  if (header->fortran_order) return make_error(where, "is in Fortran order", "save it in C order");
  const ItemType* type = nullptr;
  for (const ItemType& known : kTypes) {
    if (known.descr == header->descr) type = &known;
  }
  if (type == nullptr) {
    return make_error(where, fmt::format("has type {:?}", header->descr), "<f4, <f8, <i4, <i8, |u1 or |b1");
  }
  uint64_t count = 1;
  for (const uint64_t size : header->shape) {
    if (size > kNpzMemberBytesMax || count * size > kNpzMemberBytesMax)
      return make_error(where, fmt::format("has a dimension of {}, which is too large", size));
    count *= size;
  }
  if (parts->data.size() != count * type->bytes) {
    return make_error(where, fmt::format("has {} bytes of data", parts->data.size()),
                      fmt::format("its shape and type want {}", count * type->bytes));
  }
  NpyArray array{header->shape, std::vector<double>(count)};
  type->widen(parts->data, &array.values);
  return array;
}

#if KVTWIN_HAVE_ARCHIVE

namespace {

struct FileCloser {
  void operator()(archive* a) const { archive_read_free(a); }
};

tl::unexpected<Error> archive_error(const std::string& where, archive* reader) {
  const char* const text = archive_error_string(reader);
  return make_error(where,
                    fmt::format("cannot be read as .npz: {}", text != nullptr ? text : "unknown reason"),
                    "a zip of .npy arrays, as numpy.savez writes it");
}

Result<std::string> read_member(const std::string& where, archive* reader) {
  std::string bytes;
  char piece[1 << 14];
  for (la_ssize_t n; (n = archive_read_data(reader, piece, sizeof piece)) != 0;) {
    if (n < 0) return archive_error(where, reader);
    bytes.append(piece, static_cast<size_t>(n));
    if (bytes.size() > kNpzMemberBytesMax)
      return make_error(where, fmt::format("unpacks to more than {} MiB", kNpzMemberBytesMax >> 20));
  }
  return bytes;
}

}  // namespace

Result<NpzMembers> unpack_npz(std::string_view bytes, const std::string& where) {
  const std::unique_ptr<archive, FileCloser> reader(archive_read_new());
  archive_read_support_format_zip(reader.get());
  if (archive_read_open_memory(reader.get(), bytes.data(), bytes.size()) != ARCHIVE_OK) {
    return archive_error(where, reader.get());
  }
  NpzMembers members;
  archive_entry* entry = nullptr;
  for (int status; (status = archive_read_next_header(reader.get(), &entry)) != ARCHIVE_EOF;) {
    if (status < ARCHIVE_WARN) return archive_error(where, reader.get());
    const char* const path = archive_entry_pathname(entry);
    std::string name = path != nullptr ? path : "";
    if (!name.ends_with(".npy")) continue;
    name.resize(name.size() - 4);
    if (members.size() == kNpzMembersMax)
      return make_error(where, fmt::format("has more than {} arrays", kNpzMembersMax));
    Result<std::string> data = read_member(where + ":" + name, reader.get());
    if (!data) return tl::unexpected(data.error());
    if (!members.emplace(name, std::move(*data)).second)
      return make_error(where, fmt::format("has two arrays called {:?}", name));
  }
  return members;
}

#else

Result<NpzMembers> unpack_npz(std::string_view, const std::string& where) {
  return make_error(where, "this kvtwin was built without libarchive",
                    "install libarchive-dev and build again");
}

#endif

}  // namespace kvtwin
