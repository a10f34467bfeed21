#include "scenarios/load/foreign_words.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <sstream>

namespace kvtwin {

extern const char kForeignWords[];  // foreign_words.tsv

namespace {

std::vector<ForeignWord> read_words() {
  std::vector<ForeignWord> out;
  std::istringstream lines(kForeignWords);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with('#')) continue;
    std::istringstream cells(line);
    ForeignWord& word = out.emplace_back();
    for (std::string* cell : {&word.engines, &word.word, &word.ours, &word.note})
      std::getline(cells, *cell, '\t');
  }
  return out;
}

}  // namespace

const std::vector<ForeignWord>& foreign_words() {
  static const std::vector<ForeignWord> words = read_words();
  return words;
}

const ForeignWord* foreign_word(std::string_view word) {
  word.remove_prefix(std::min(word.find_first_not_of('-'), word.size()));
  std::string plain(word);
  for (char& c : plain) c = c == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  const std::vector<ForeignWord>& words = foreign_words();
  const auto found = std::ranges::find(words, plain, &ForeignWord::word);
  return found == words.end() ? nullptr : &*found;
}

std::string foreign_hint(std::string_view word) {
  const ForeignWord* const row = foreign_word(word);
  if (row == nullptr) return {};
  if (row->ours.empty()) return row->note;
  return fmt::format("{} ({}) is {} here{}{}", row->word, row->engines, row->ours,
                     row->note.empty() ? "" : ": ", row->note);
}

}  // namespace kvtwin
