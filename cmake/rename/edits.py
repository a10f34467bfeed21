"""What is added to a renamed checkout: the table of retired names, where it is used, its tests, the CHANGELOG's table. Each edit is made once."""
import os
import re

HERE = os.path.dirname(os.path.abspath(__file__))


def user_names():
    rows = []
    for line in open(f'{HERE}/user_names.txt', encoding='utf-8'):
        line = line.rstrip('\n')
        if line and not line.startswith('#'):
            rows.append(line.split('\t'))
    return rows


def entries(text):
    """What is said, however it is laid out."""
    return ''.join(re.sub(r'\n//', '', text).split())


def table():
    seen, out = set(), []
    for _, old, new in user_names():
        if (old, new) not in seen:
            seen.add((old, new))
            out.append(f'    {{"{old}", "{new}"}},')
    return '\n'.join(out)


# (path, mark that says it is done, regex, replacement)
EDITS = [
    ('models/textproto.cc', 'name_now(', r'(  if \(word\.size\(\) > 200\) return \{\};\n)',
     r'''\1  if (const std::string_view now = name_now(word, known); !now.empty())
    return fmt::format("it is called \\"{}\\" now", now);
'''),
    ('models/textproto.cc', 'retired_names.h', r'(#include <numeric>\n)', r'\1\n#include "engine/base/retired_names.h"\n'),
    ('engine/recorder_log.cc', 'recorded_policy(', r'    for \(int i = 0; i < 8; \+\+i\) \*names\[static_cast<size_t>\(i\)\] = in\.policies\(i\);\n',
     r'    for (int i = 0; i < 8; ++i) *names[static_cast<size_t>(i)] = recorded_policy(i, in.policies(i));\n'),
    ('engine/recorder_log.cc', '// Logs name layouts', r'\nnamespace \{\n',
     r'''
namespace {

// Logs name layouts and placements as they were called when the log was written.
std::string recorded_policy(int axis, const std::string& name) {
  static const std::vector<std::string> layouts = {"ring", "page_mask", "slot_mask"}, placements = {"resident"};
  const std::string_view now = axis == 2   ? name_now(name, layouts)
                               : axis == 4 ? name_now(name, placements)
                                           : std::string_view{};
  return now.empty() ? name : std::string(now);
}
'''),
    ('engine/recorder_log.cc', 'retired_names.h', r'(#include "engine/recorder_log\.h"\n(?:\n#include <[^\n]*>\n)?(?:#include <[^\n]*>\n)*\n)', r'\1#include "engine/base/retired_names.h"\n'),
    ('tests/tidy/source_rules.h', 'RetiredNames', r'#include <string>\n', '#include <map>\n#include <string>\n'),
    ('tests/tidy/source_rules.h', 'check_retired', r'\n\}  // namespace kvtwin::tidy',
     r'''
// Old identifiers and their successors, from lines of `old<TAB>new`.
using RetiredNames = std::map<std::string, std::string>;
RetiredNames read_retired(const std::string& text);
Findings check_retired(const SourceFile& file, const RetiredNames& names);  // none of them, as a whole word

}  // namespace kvtwin::tidy'''),
    ('tests/tidy/source_rules.cc', 'check_retired', r'\n\}  // namespace kvtwin::tidy\s*$',
     r'''
RetiredNames read_retired(const std::string& text) {
  RetiredNames names;
  each_line(text, [&](int, const std::string& line) {
    const size_t tab = line.find('\\t');
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
'''),
    ('tests/tidy/CMakeLists.txt', 'retired_test.cc', r'SOURCES tidy_test\.cc source_rules\.cc', 'SOURCES retired_test.cc tidy_test.cc source_rules.cc'),
    ('tests/scenarios/CMakeLists.txt', 'retired_names_test.cc', r'(pool_test\.cc) ', r'\1 retired_names_test.cc '),
    ('tests/cli/cli_test.cc', '"--backend\\" now"', r'(      \{"run x --fomat=json",[^\n]*\n)',
     r'''\1      {"run x --wo" "rld=cpu", "kvtwin run: no option \\"--wo" "rld\\"; it is called \\"--backend\\" now"},
'''),
]


# (path, first line of a function, mark, regex, replacement): longer names must not make a function longer than tidy lets it be.
SHORTER = [
    ('engine/policy/core.cc', 'void Core::State::check_invariants() const {', 'const RequestState& r :', r'\brequest\b', 'r'),
    ('scenarios/summary.cc', '  void body() {', 'RequestCounts& all', r'(?<![\w.])requests(?= =|\.)', 'all'),
    ('engine/metrics_steps.cc', 'void Metrics::launched(Instant now, const LaunchStep& step) {', 'const PageAllocation& one) {',
     r'\[&\]\(const PageAllocation& allocation\) \{\s*return pages_gpu > 0 && raw\(allocation\.page\) >= pages_gpu;\s*\}',
     '[&](const PageAllocation& one) { return pages_gpu > 0 && raw(one.page) >= pages_gpu; }'),
]


def changelog():
    rows = user_names()
    kinds = [('flag', 'Flags'), ('field', 'Fields of scenarios and of other textprotos (`--set`, `--vary`, `--load` likewise)'), ('value', 'Values'),
             ('column', 'Columns and metrics'), ('file', 'Files')]
    out = ['- **Rationale**: names follow the field\'s words (docs: the glossary). Flags, fields, columns and files are renamed; an old name gets an error',
           '  that names the new one. Recordings (`*.binpb`) still read. Decisions and digests are unchanged.', '']
    for kind, title in kinds:
        out += [f'  | {title} | now |', '  |---|---|']
        out += [f'  | `{old}` | `{new}` |' for k, old, new in rows if k == kind]
        out.append('')
    words = [('call', 'request'), ('cell', 'KV entry (its place in a page: slot)'), ('row (of a step)', 'token, query token'), ('world', 'backend'),
             ('kept; hole, dead', 'retained; dropped'), ('look; marks', 'attention scores; scorer state'), ('arena', 'resident pages (placement); ring (layout)'),
             ('snapshot', 'prefix checkpoint'), ('folded, quiet stretch', 'coalesced steps'), ('imposed', 'forced'), ('moment', 'compression trigger'),
             ('demoted', 'offloaded (prefix), swapped out (request)'), ('clean page', 'page with a host copy'), ('share', 'fraction'), ('frame', 'logical page'),
             ('adopted', 'reused (prefix hit)'), ('grant', 'allocation'), ('lease', 'pin'), ('dual', 'mixed precision')]
    out += ['  | Word in reports and messages | now |', '  |---|---|'] + [f'  | {a} | {b} |' for a, b in words] + ['']
    return '\n'.join(out)


def apply_all():
    done, missing = [], []
    for folder, _, files in os.walk(f'{HERE}/new_files'):
        for f in sorted(files):
            source = os.path.join(folder, f)
            target = os.path.relpath(source, f'{HERE}/new_files')
            text = open(source, encoding='utf-8').read()
            text = re.sub(r'@TABLE\s*@', lambda _: table(), text)  # (clang-format may have put a space)
            if not os.path.exists(target) or entries(open(target, encoding='utf-8').read()) != entries(text):
                os.makedirs(os.path.dirname(target), exist_ok=True)
                open(target, 'w', encoding='utf-8').write(text)
                done.append(target)
    for path, mark, rx, new in EDITS:
        text = open(path, encoding='utf-8').read()
        if mark in text:
            continue
        text, n = re.subn(rx, new, text, count=1)
        if n == 0:
            missing.append(f'{path}: {mark}')
            continue
        open(path, 'w', encoding='utf-8').write(text)
        done.append(path)
    for path, first, mark, rx, new in SHORTER:
        text = open(path, encoding='utf-8').read()
        at = text.find(first)
        if at < 0:
            missing.append(f'{path}: {first}')
            continue
        indent = re.match(r' *', first).group(0)
        end = text.find(f'\n{indent}}}\n', at)
        body = text[at:end]
        if mark in body:
            continue
        body = re.sub(rx, new, body)
        if mark not in body:
            missing.append(f'{path}: {mark}')
            continue
        open(path, 'w', encoding='utf-8').write(text[:at] + body + text[end:])
        done.append(path)
    text = open('CHANGELOG.md', encoding='utf-8').read()
    if "names follow the field's words" not in text:
        text = text.replace('## Unreleased\n\n', '## Unreleased\n\n' + changelog() + '\n', 1)
        open('CHANGELOG.md', 'w', encoding='utf-8').write(text)
        done.append('CHANGELOG.md')
    return sorted(set(done)), missing
