#include "tests/unit/tidy/source_rules.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <sstream>

namespace kvtwin::tidy {
namespace {

namespace fs = std::filesystem;

struct Rule {
  std::string folder;                // prefix of the files' paths; the longest of several applies
  std::vector<std::string> allowed;  // allowed beginnings of their #include "..."
};

// The dependency direction of the whole project (docs/contributing/style.md#dependencies). Below these
// folders, no two may include each other (check_folder_cycles).
const std::vector<Rule> kMayInclude = {
    {"engine/base/", {"engine/base/"}},
    {"engine/kv/", {"engine/base/", "engine/kv/"}},
    {"engine/kv/store/", {"engine/base/", "engine/kv/"}},
    {"engine/kv/managers/", {"engine/base/", "engine/kv/", "engine/methods/"}},
    {"engine/methods/", {"engine/base/", "engine/kv/", "engine/methods/"}},
    {"engine/scheduler/", {"engine/base/", "engine/kv/", "engine/methods/", "engine/scheduler/"}},
    {"engine/router/", {"engine/base/", "engine/router/"}},
    {"engine/steps/", {"engine/base/", "engine/methods/", "engine/steps/"}},
    {"engine/runtime/", {"engine/base/", "engine/router/", "engine/runtime/", "engine/scheduler/"}},
    {"engine/metrics/", {"engine/base/", "engine/metrics/", "engine/runtime/"}},
    {"engine/recorder/",
     {"engine/base/", "engine/kv/", "engine/methods/", "engine/recorder/", "engine/runtime/",
      "traces/proto/"}},
    {"engine/common/",
     {"engine/base/", "engine/common/", "engine/kv/", "engine/methods/", "engine/runtime/", "kernels/",
      "models/"}},
    {"engine/cpu/",
     {"engine/base/", "engine/common/", "engine/cpu/", "engine/methods/", "engine/runtime/", "kernels/",
      "models/"}},
    {"engine/cuda/",
     {"engine/base/", "engine/common/", "engine/cpu/compression/", "engine/cuda/", "engine/methods/",
      "engine/runtime/", "engine/steps/", "kernels/", "models/"}},
    {"engine/calibrate/",
     {"engine/base/", "engine/calibrate/", "engine/common/", "engine/cuda/", "kernels/", "models/"}},
    {"kernels/", {"kernels/", "engine/base/"}},
    {"models/", {"models/", "engine/base/", "kernels/grids/", "traces/proto/"}},
    {"sim/",
     {"sim/", "engine/base/", "engine/kv/", "engine/methods/", "engine/recorder/", "engine/runtime/",
      "engine/steps/", "kernels/grids/", "models/"}},
    {"kernels/grids/", {"kernels/grids/", "engine/base/"}},
    {"traces/", {"traces/", "engine/base/"}},
    {"traces/replay/", {"traces/", "engine/base/", "engine/runtime/"}},
    {"scenarios/", {"scenarios/", "engine/", "sim/", "models/", "traces/", "kernels/", "reports/"}},
    {"reports/", {"reports/", "engine/base/", "traces/proto/"}},
};

struct Owner {
  std::string word;                  // in an #include
  std::vector<std::string> folders;  // where it is allowed
};
const std::vector<Owner> kOutsideLibraries = {
    {"simgrid", {"sim/", "tests/unit/sim/", "tests/bench/"}},
    {"xbt/", {"sim/", "tests/unit/sim/"}},
    {"cuda", {"kernels/", "engine/cuda/", "tests/unit/cuda_kernels/"}},
    {"google/protobuf", {"traces/", "models/", "scenarios/", "reports/", "engine/recorder/", "tests/"}},
    {".pb.h", {"traces/", "models/", "scenarios/", "reports/", "engine/recorder/", "tests/"}},
};

// All decision code: one library (kvtwin_policy) that links kvtwin_base alone; and the types of its
// interface.
const std::vector<std::string> kPolicy = {
    "engine/kv/",           "engine/methods/",      "engine/scheduler/",      "engine/router/",
    "engine/base/commands", "engine/base/events.h", "engine/base/identity.h", "engine/base/prompt_span",
    "engine/base/tags.h",
};

// Words that the policy must not contain. Parts of longer words do not count.
const std::vector<std::string> kBannedInPolicy = {
    "chrono", "random", "thread",        "mutex",         "atomic",    "fstream", "iostream", "cstdio",
    "printf", "getenv", "unordered_map", "unordered_set", "std::hash", "double",  "float",    "rand",
    "time",   "clock",  "simgrid",       "cuda",          "CUDA",      "throw",   "try",      "catch",
};

bool starts_with_any(const std::string& text, const std::vector<std::string>& prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(),
                     [&](const std::string& prefix) { return text.starts_with(prefix); });
}

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

bool has_word(const std::string& line, const std::string& word) {
  for (size_t at = line.find(word); at != std::string::npos; at = line.find(word, at + 1)) {
    const size_t end = at + word.size();
    if ((at == 0 || !is_word(line[at - 1])) && (end == line.size() || !is_word(line[end]))) return true;
  }
  return false;
}

template <typename Visit>
void each_line(const std::string& text, Visit visit) {
  std::istringstream lines(text);
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) visit(number, line);
}

std::string place(const SourceFile& file, int line) { return file.path + ":" + std::to_string(line) + ": "; }

// The name in an #include, with its quote or bracket; empty for other lines.
std::string included(const std::string& line) {
  if (!line.starts_with("#include ")) return {};
  return line.substr(9, line.find_last_of("\">") - 8);
}

bool opens_scope(const std::string& head) {
  static const std::vector<std::string> kScopes = {"namespace", "class", "struct", "union", "enum", "extern"};
  return std::any_of(kScopes.begin(), kScopes.end(),
                     [&](const std::string& word) { return has_word(head, word); });
}

// The folders that the files of each folder include.
using FolderGraph = std::map<std::string, std::set<std::string>>;

std::string folder_of(const std::string& path) { return path.substr(0, path.rfind('/')); }

// Follows includes from the last folder of `way`; a folder that `way` already has closes a cycle.
void follow(const FolderGraph& graph, std::vector<std::string>* way, std::set<std::string>* done,
            Findings* found) {
  const auto from = graph.find(way->back());
  for (const std::string& next : from == graph.end() ? std::set<std::string>{} : from->second) {
    const auto met = std::find(way->begin(), way->end(), next);
    if (met != way->end()) {
      std::string circle;
      for (auto at = met; at != way->end(); ++at) circle += *at + " -> ";
      found->push_back(circle + next);
    } else if (!done->contains(next)) {
      way->push_back(next);
      follow(graph, way, done, found);
      way->pop_back();
    }
  }
  done->insert(way->back());
}

}  // namespace

Findings check_folder_cycles(const std::vector<SourceFile>& files) {
  FolderGraph graph;
  for (const SourceFile& file : files) {
    std::set<std::string>& includes = graph[folder_of(file.path)];
    each_line(file.text, [&](int, const std::string& line) {
      const std::string target = included(line);
      if (target.empty() || target[0] != '"' || target.find('/') == std::string::npos) return;
      const std::string folder = folder_of(target.substr(1));
      if (folder != folder_of(file.path)) includes.insert(folder);
    });
  }
  Findings found;
  std::set<std::string> done;
  for (const auto& [folder, includes] : graph) {
    std::vector<std::string> way = {folder};
    if (!done.contains(folder)) follow(graph, &way, &done, &found);
  }
  return found;
}

std::vector<SourceFile> read_sources(const std::vector<std::string>& folders,
                                     const std::vector<std::string>& extensions) {
  const fs::path root = KVTWIN_SOURCE_DIR;
  std::vector<SourceFile> files;
  const auto take = [&](const fs::path& path) {
    const std::string extension = path.extension().string();
    if (std::find(extensions.begin(), extensions.end(), extension) == extensions.end()) return;
    std::ifstream in(path, std::ios::binary);
    files.push_back({fs::relative(path, root).generic_string(), {std::istreambuf_iterator<char>(in), {}}});
  };
  for (const std::string& folder : folders) {
    if (!fs::exists(root / folder)) continue;
    fs::recursive_directory_iterator it(root / folder);
    for (; it != fs::recursive_directory_iterator(); ++it) {
      if (it->is_directory() && it->path().filename() == "node_modules") it.disable_recursion_pending();
      if (it->is_regular_file()) take(it->path());
    }
  }
  for (const auto& entry : fs::directory_iterator(root)) {
    if (entry.is_regular_file()) take(entry.path());
  }
  std::sort(files.begin(), files.end(), [](const auto& a, const auto& b) { return a.path < b.path; });
  return files;
}

std::string code_only(const std::string& text) {
  std::string code = text;
  size_t at = 0;
  const auto blank_until = [&](size_t end) {
    for (end = std::min(end, code.size()); at < end; ++at) {
      if (code[at] != '\n') code[at] = ' ';
    }
  };
  while (at < text.size()) {
    if (text.compare(at, 2, "//") == 0) {
      blank_until(text.find('\n', at));
    } else if (text.compare(at, 2, "/*") == 0) {
      const size_t end = text.find("*/", at);
      blank_until(end == std::string::npos ? end : end + 2);
    } else if (text.compare(at, 2, "R\"") == 0) {
      const size_t open = text.find('(', at);
      if (open == std::string::npos) break;
      std::string close(1, ')');
      close.append(text, at + 2, open - at - 2).append(1, '"');
      const size_t end = text.find(close, open);
      blank_until(end == std::string::npos ? end : end + close.size());
    } else if (text[at] == '"' || (text[at] == '\'' && (at == 0 || !is_word(text[at - 1])))) {
      size_t end = at + 1;  // (a quote after a digit separates thousands)
      while (end < text.size() && text[end] != text[at]) end += text[end] == '\\' ? 2 : 1;
      blank_until(end + 1);
    } else {
      ++at;
    }
  }
  return code;
}

Findings check_includes(const SourceFile& file) {
  Findings findings;
  const Rule* rule = nullptr;
  for (const Rule& candidate : kMayInclude) {
    if (file.path.starts_with(candidate.folder) &&
        (rule == nullptr || candidate.folder.size() > rule->folder.size())) {
      rule = &candidate;
    }
  }
  each_line(file.text, [&](int number, const std::string& line) {
    const std::string target = included(line);
    if (target.empty()) return;
    if (target[0] == '"' && rule != nullptr && !starts_with_any(target.substr(1), rule->allowed)) {
      findings.push_back(place(file, number) + rule->folder + " may not include " + target);
    }
    for (const Owner& owner : kOutsideLibraries) {
      if (target.find(owner.word) != std::string::npos && !starts_with_any(file.path, owner.folders) &&
          !(target[0] == '"' && target.find(".pb.h") == std::string::npos)) {
        findings.push_back(place(file, number) + target + " belongs to " + owner.folders.front() + " alone");
      }
    }
  });
  return findings;
}

Findings check_policy_words(const SourceFile& file) {
  Findings findings;
  if (!starts_with_any(file.path, kPolicy)) return findings;
  each_line(code_only(file.text), [&](int number, const std::string& line) {
    for (const std::string& word : kBannedInPolicy) {
      if (has_word(line, word)) findings.push_back(place(file, number) + word + " is banned in the policy");
    }
  });
  return findings;
}

Findings check_scheduler_words(const SourceFile& file, const std::vector<std::string>& methods) {
  static const std::vector<std::string> kModes = {
      "KvKind",
      "PagedKvManager",
      "GroupedKvManager",
      "MixedPrecisionKvManager",
      "ResidentKvManager",
      "SlotRetention",
      "slot_retention",
      "keeps_all",
      "by_group",
      "by_chunk",
      "by_tag",
      "staged",
      "uses_host",
      "uses_resident",
      "needs_resident",
      "resident",
      "mixed",
      "snapshots",
      "arena",
      "dual",
      "placement",
      "precision",
      "retrieval",
      "layout",
      "scorer",
      "budget_spec",
      "dynamic_cast",
  };
  Findings findings;
  if (!file.path.starts_with("engine/scheduler/")) return findings;
  each_line(code_only(file.text), [&](int number, const std::string& line) {
    for (const std::string& word : kModes) {
      // A member's name ends with an underscore.
      if (has_word(line, word) || has_word(line, word + "_"))
        findings.push_back(place(file, number) + word + " is a KV manager's business");
    }
  });
  each_line(file.text, [&](int number, const std::string& line) {
    for (const std::string& name : methods) {
      if (has_word(line, name)) findings.push_back(place(file, number) + "names the method " + name);
    }
  });
  return findings;
}

std::vector<std::string> unmistakable(const std::vector<MethodName>& methods) {
  static const std::set<std::string> kOrdinary = {
      "none",    "all",  "ratio",   "uniform", "pyramid",  "reserved", "random",
      "paged",   "ring", "compact", "gpu",     "host",     "resident", "shared",
      "session", "lru",  "lfu",     "aot",     "released", "ada",      "external"};
  std::vector<std::string> names;
  for (const MethodName& method : methods) {
    if (!kOrdinary.contains(method.name)) names.push_back(method.name);
  }
  return names;
}

std::vector<std::string> files_naming(const std::vector<SourceFile>& files, const std::string& name) {
  std::vector<std::string> out;
  for (const SourceFile& file : files) {
    bool named = false;
    each_line(file.text, [&](int, std::string line) {
      line = line.substr(0, line.find("//"));
      for (char& c : line) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
      named = named || line.find(name) != std::string::npos;
    });
    if (named) out.push_back(file.path);
  }
  return out;
}

Findings check_method_names(const SourceFile& file, const std::vector<MethodName>& methods) {
  // Names that mean something else too count only where the other side of a comparison is called like the
  // axis.
  static const std::set<std::string> kWords = {"bf16", "fp8", "int4", "fp4", "ragged", "session"};
  static const std::vector<std::string> kFolders = {"engine/", "scenarios/", "sim/", "models/", "kernels/"};
  Findings findings;
  const bool checked = std::any_of(kFolders.begin(), kFolders.end(),
                                   [&](const std::string& folder) { return file.path.starts_with(folder); });
  if (!checked || file.path.starts_with("engine/methods/")) return findings;
  std::set<std::string> alone;
  for (const std::string& name : unmistakable(methods)) alone.insert(name);
  each_line(file.text, [&](int number, const std::string& line) {
    for (const MethodName& method : methods) {
      for (const char* const equals : {"== ", "!= "}) {
        const std::string compared = equals + ("\"" + method.name + "\"");
        const size_t at = line.find(compared);
        if (at == std::string::npos) continue;
        std::string left = line.substr(0, at);
        while (!left.empty() && (left.back() == ' ' || left.back() == '(' || left.back() == ')'))
          left.pop_back();
        const bool by_axis = left.ends_with(method.axis);
        if (by_axis || (alone.contains(method.name) && !kWords.contains(method.name)))
          findings.push_back(file.path + ":" + std::to_string(number) + ": compares with " + method.axis +
                             " " + method.name + "; ask its traits (engine/methods/traits.h)");
      }
    }
  });
  return findings;
}

int count_fields(const std::string& text, const std::string& name) {
  const std::string code = code_only(text);
  const size_t begin = code.find("struct " + name + " {");
  if (begin == std::string::npos) return 0;
  int fields = 0;
  std::istringstream lines(code.substr(begin, code.find("\n};", begin) - begin));
  std::string line;
  std::getline(lines, line);
  while (std::getline(lines, line)) {
    const bool declares = line.find(';') != std::string::npos && line.find('(') == std::string::npos;
    if (!declares || line.find("enum ") != std::string::npos) continue;
    fields += 1 + static_cast<int>(std::count(line.begin(), line.end(), ','));
  }
  return fields;
}

// A function starts where a brace opens after a parenthesis outside any other function.
Findings check_lengths(const SourceFile& file) {
  constexpr int kFileLines = 500, kFunctionLines = 70, kColumns = 110;
  Findings findings;
  const std::string code = code_only(file.text);
  std::vector<bool> blank;  // only comment, literal or space
  each_line(code, [&](int, const std::string& line) {
    blank.push_back(line.find_first_not_of(' ') == std::string::npos);
  });
  int lines = 0;
  each_line(file.text, [&](int number, const std::string& line) {
    lines = number;
    // A literal cannot always be broken; a comment can.
    const bool literal = line.find('"') != std::string::npos;
    const bool inside_literal =
        blank[static_cast<size_t>(number) - 1] && line.find("//") == std::string::npos;
    if (literal || inside_literal) return;
    const auto columns = std::count_if(line.begin(), line.end(), [](char c) { return (c & 0xc0) != 0x80; });
    if (columns > kColumns) findings.push_back(place(file, number) + "more than 110 columns");
  });
  if (lines > kFileLines) findings.push_back(place(file, lines) + "a file of more than 500 lines");
  std::string head;
  int depth = 0, line = 1, function_depth = -1, function_line = 0, head_line = 0;
  for (const char c : code) {
    if (c == '\n') ++line;
    if (c == '{') {
      if (function_depth < 0 && head.find('(') != std::string::npos && !opens_scope(head)) {
        function_depth = depth;
        function_line = head_line;
      }
      ++depth;
    } else if (c == '}') {
      --depth;
      if (depth == function_depth) {
        function_depth = -1;
        if (line - function_line + 1 > kFunctionLines) {
          findings.push_back(place(file, function_line) + "a function of " +
                             std::to_string(line - function_line + 1) + " lines");
        }
      }
    }
    if (c == '{' || c == '}' || c == ';') {
      head.clear();
    } else {
      if (head.empty() && std::isspace(static_cast<unsigned char>(c)) == 0) head_line = line;
      if (!head.empty() || std::isspace(static_cast<unsigned char>(c)) == 0) head += c;
    }
  }
  return findings;
}

Findings check_guard(const SourceFile& file) {
  std::string guard = "KVTWIN_";
  for (const char c : file.path) {
    guard += is_word(c) ? static_cast<char>(std::toupper(static_cast<unsigned char>(c))) : '_';
  }
  guard += '_';
  const bool opened = file.text.find("#ifndef " + guard + "\n#define " + guard + "\n") != std::string::npos;
  const bool closed = file.text.find("#endif  // " + guard + "\n") != std::string::npos;
  if (opened && closed) return {};
  return {file.path + ": its guard should be " + guard};
}

Findings check_own_header_first(const SourceFile& file, bool has_header) {
  if (!has_header) return {};
  std::string own(1, '"');
  own.append(file.path, 0, file.path.rfind('.')).append(".h\"");
  Findings findings;
  bool seen = false;
  each_line(file.text, [&](int number, const std::string& line) {
    const std::string target = included(line);
    if (target.empty() || seen) return;
    seen = true;
    if (target != own) findings.push_back(place(file, number) + own + " should be included first");
  });
  return findings;
}

Findings check_left_overs(const SourceFile& file) {
  // Split in two, so that this file passes its own test.
  const std::vector<std::string> words = {std::string("FIX") + "ME", std::string("Co-auth") + "ored",
                                          std::string("/wo") + "rk/"};
  Findings findings;
  each_line(file.text, [&](int number, const std::string& line) {
    for (const std::string& word : words) {
      if (line.find(word) != std::string::npos) findings.push_back(place(file, number) + word);
    }
  });
  return findings;
}

RetiredNames read_retired(const std::string& text) {
  RetiredNames names;
  each_line(text, [&](int, const std::string& line) {
    const size_t tab = line.find('\t');
    if (tab != std::string::npos) names.emplace(line.substr(0, tab), line.substr(tab + 1));
  });
  return names;
}

Findings check_retired(const SourceFile& file, const RetiredNames& names) {
  if (file.path == "engine/base/retired_names.h") return {};  // names them to users
  const auto in_word = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; };
  Findings findings;
  each_line(file.text, [&](int number, const std::string& line) {
    for (size_t at = 0; at < line.size();) {
      size_t end = at;
      while (end < line.size() && in_word(line[end])) ++end;
      const auto found = names.find(line.substr(at, end - at));
      if (end > at && found != names.end()) {
        findings.push_back(place(file, number) + found->first + " is called " + found->second + " now");
      }
      at = std::max(end, at + 1);
    }
  });
  return findings;
}

}  // namespace kvtwin::tidy
