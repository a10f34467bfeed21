#include "models/files/csv.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

#include "models/files/textproto.h"

namespace kvtwin {
namespace {

// Splits a line at its commas; a carriage return at its end is dropped.
void split(std::string_view line, std::vector<std::string_view>* fields) {
  fields->clear();
  if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
  size_t from = 0;
  for (size_t at = line.find(','); at != std::string_view::npos; at = line.find(',', from)) {
    fields->push_back(line.substr(from, at - from));
    from = at + 1;
  }
  fields->push_back(line.substr(from));
}

std::string printable(std::string_view text) {
  std::string out;
  for (const char c : text.substr(0, 40)) out += c >= ' ' && c <= '~' ? c : '?';
  return out;
}

}  // namespace

void CsvRow::fail(size_t column, const std::string& what_would_be_right) {
  if (!error_.empty()) return;
  error_ = fmt::format("{} is \"{}\"", (*header_)[column], printable(fields_[column]));
  hint_ = what_would_be_right;
}

uint32_t CsvRow::count(size_t column) {
  const std::string_view text = fields_[column];
  uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value > INT32_MAX) {
    fail(column, "a whole number below 2^31 is right");
    return 0;
  }
  return value;
}

double CsvRow::real(size_t column, double low, double high) {
  const std::string_view text = fields_[column];
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(value >= low && value <= high)) {
    fail(column, fmt::format("a number from {} to {} is right", low, high));
    return low;
  }
  return value;
}

std::string CsvFile::here() const { return fmt::format("{}:{}", path_, line_); }

Result<CsvFile> CsvFile::open(const std::string& path, const std::vector<std::string>& header) {
  CsvFile file;
  Result<std::string> text = read_text_file(path);
  if (!text) return tl::unexpected<Error>(text.error());
  file.path_ = path, file.text_ = std::move(*text), file.header_ = header;
  const size_t end = std::min(file.text_.find('\n'), file.text_.size());
  std::vector<std::string_view> names;
  split(std::string_view(file.text_).substr(0, end), &names);
  if (!std::equal(names.begin(), names.end(), header.begin(), header.end())) {
    return make_error(path + ":1", fmt::format("the header is \"{}\"", printable(file.text_.substr(0, end))),
                      fmt::format("\"{}\" is right", fmt::join(header, ",")));
  }
  file.at_ = end;
  return file;
}

CsvFile CsvFile::of_text(const std::string& path, std::string text) {
  CsvFile file;
  file.path_ = path, file.text_ = std::move(text);
  file.at_ = std::min(file.text_.find('\n'), file.text_.size());
  std::vector<std::string_view> names;
  split(std::string_view(file.text_).substr(0, file.at_), &names);
  for (const std::string_view name : names) file.header_.emplace_back(name);
  return file;
}

Result<bool> CsvFile::next(CsvRow* row) {
  if (!row->error_.empty()) return make_error(here(), row->error_, row->hint_);
  if (at_ >= text_.size() || at_ + 1 >= text_.size()) return false;
  const size_t from = at_ + 1;
  at_ = std::min(text_.find('\n', from), text_.size());
  ++line_;
  row->header_ = &header_;
  split(std::string_view(text_).substr(from, at_ - from), &row->fields_);
  if (row->fields_.size() != header_.size()) {
    return make_error(here(), fmt::format("has {} fields", row->fields_.size()),
                      fmt::format("the header has {}", header_.size()));
  }
  return true;
}

}  // namespace kvtwin
