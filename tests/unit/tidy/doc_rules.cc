#include "tests/unit/tidy/doc_rules.h"

#include <algorithm>
#include <cctype>
#include <sstream>

namespace kvtwin::tidy {
namespace {

bool is_alnum(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; }
bool in_path(char c) { return is_alnum(c) || c == '_' || c == '-' || c == '.' || c == '/'; }
bool in_anchor(char c) { return is_alnum(c) || c == '_' || c == '-'; }

size_t skip(const std::string& text, size_t at, bool (*member)(char)) {
  while (at < text.size() && member(text[at])) ++at;
  return at;
}

std::string position(const SourceFile& file, size_t at) {
  const auto end = file.text.begin() + static_cast<std::ptrdiff_t>(at);
  return file.path + ":" + std::to_string(1 + std::count(file.text.begin(), end, '\n')) + ": ";
}

void expect_page(const SourceFile& file, size_t at, const std::string& page, const std::string& anchor,
                 const Anchors& anchors, Findings* findings) {
  const auto found = anchors.find(page);
  if (found == anchors.end()) {
    findings->push_back(position(file, at) + page + " does not exist");
  } else if (!anchor.empty() && !found->second.contains(anchor)) {
    findings->push_back(position(file, at) + page + " has no anchor #" + anchor);
  }
}

// The position of the '#' of a further anchor of the same page, after `, ` or ` and `, possibly on the next
// comment line; npos if there is none.
size_t further_anchor(const std::string& text, size_t at) {
  const auto spaces = [&] { at = std::min(text.find_first_not_of(' ', at), text.size()); };
  const auto take = [&](const std::string& word) {
    const bool found = text.compare(at, word.size(), word) == 0;
    if (found) at += word.size();
    return found;
  };
  bool joined = take(",");
  spaces();
  joined = take("and") || joined;
  spaces();
  if (take("\n")) {
    spaces();
    if (!take("//")) take("# ");
    spaces();
  }
  joined = take("and ") || joined;
  spaces();
  const bool opens = at + 1 < text.size() && text[at] == '#' && is_alnum(text[at + 1]);
  return joined && opens ? at : std::string::npos;
}

// Paths from the project's root, with the anchors that follow them.
void check_root_paths(const SourceFile& file, const Anchors& anchors, Findings* findings) {
  const std::string& text = file.text;
  const std::string folder = "docs/";
  for (size_t at = text.find(folder); at != std::string::npos; at = text.find(folder, at + 1)) {
    if (at > 0 && in_path(text[at - 1])) continue;
    const std::string path = text.substr(at, skip(text, at, in_path) - at);
    const size_t extension = path.find(".md");
    if (extension == std::string::npos) continue;
    const std::string page = path.substr(0, extension + 3);
    size_t end = at + page.size();
    expect_page(file, at, page, "", anchors, findings);
    const bool anchored = end + 1 < text.size() && text[end] == '#' && is_alnum(text[end + 1]);
    for (size_t hash = anchored ? end : std::string::npos; hash != std::string::npos;) {
      end = skip(text, hash + 1, in_anchor);
      if (anchors.contains(page)) {
        expect_page(file, hash, page, text.substr(hash + 1, end - hash - 1), anchors, findings);
      }
      hash = further_anchor(text, end);
    }
  }
}

// The slug of a heading of plain words, where forges and site generators agree; empty for other headings.
std::string slug_of(const std::string& heading) {
  std::string slug;
  for (const char c : heading) {
    if (!is_alnum(c) && c != ' ' && c != '-') return {};
    slug += c == ' ' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return slug;
}

}  // namespace

Anchors read_anchors(const std::vector<SourceFile>& pages) {
  const std::string opening = "<a id=\"";
  Anchors anchors;
  for (const SourceFile& page : pages) {
    std::set<std::string>& ids = anchors[page.path];
    std::istringstream lines(page.text);
    for (std::string line; std::getline(lines, line);) {
      const size_t title = line.find_first_not_of('#');
      if (title != std::string::npos && title > 0 && line[title] == ' ') {
        ids.insert(slug_of(line.substr(title + 1)));
      }
      const size_t at = line.find(opening);
      if (at == std::string::npos) continue;
      const size_t begin = at + opening.size();
      ids.insert(line.substr(begin, line.find('"', begin) - begin));
    }
  }
  return anchors;
}

Findings check_references(const SourceFile& file, const Anchors& anchors) {
  Findings findings;
  check_root_paths(file, anchors, &findings);
  return findings;
}

Findings check_retired_documents(const SourceFile& file) {
  // Split in two, so that this file passes its own test. Ambiguous names have other uses too.
  static const std::vector<std::string> kNames = {
      std::string("METH") + "ODS",     std::string("DES") + "IGN",  std::string("TRA") + "CES",
      std::string("KERN") + "ELS",     std::string("SIMG") + "RID", std::string("STY") + "LE",
      std::string("ARCHIT") + "ECTURE"};
  static const std::set<std::string> kAmbiguous = {kNames[4], kNames[5]};
  const std::string& text = file.text;
  const auto in_word = [](char c) { return is_alnum(c) || c == '_'; };
  Findings findings;
  for (const std::string& name : kNames) {
    for (size_t at = text.find(name); at != std::string::npos; at = text.find(name, at + 1)) {
      const size_t end = at + name.size();
      if ((at > 0 && in_word(text[at - 1])) || (end < text.size() && in_word(text[end]))) continue;
      const bool document = text.compare(end, 3, ".md") == 0 || text.compare(end, 2, "'s") == 0 ||
                            (text.compare(end, 1, " ") == 0 && end + 1 < text.size() &&
                             std::isdigit(static_cast<unsigned char>(text[end + 1])) != 0);
      if (kAmbiguous.contains(name) && !document) continue;
      findings.push_back(position(file, at) + name +
                         " is no document of the repository: name a page of docs/");
    }
  }
  return findings;
}

}  // namespace kvtwin::tidy
