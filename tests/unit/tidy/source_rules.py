"""Rules about the source that a compiler cannot check: generators of findings, "path:line: problem", of a file's text."""

import collections
import pathlib
import re

SOURCE = pathlib.Path(__file__).resolve().parents[3]
File = collections.namedtuple("File", "path text")  # the path from the project's root

# The dependency direction of the whole project (docs/contributing/style.md#dependencies): the allowed beginnings of the
# #include "..." of files below a folder; of several folders the longest applies. Below these folders, no two may include
# each other (folder_cycles).
MAY_INCLUDE = {folder: tuple(allowed.split()) for folder, allowed in {
    "engine/base/": "engine/base/",
    "engine/chat/": "engine/base/ engine/chat/",
    "engine/kv/": "engine/base/ engine/kv/",
    "engine/kv/store/": "engine/base/ engine/kv/",
    "engine/kv/managers/": "engine/base/ engine/kv/ engine/methods/",
    "engine/methods/": "engine/base/ engine/kv/ engine/methods/",
    "engine/scheduler/": "engine/base/ engine/kv/ engine/methods/ engine/scheduler/",
    "engine/router/": "engine/base/ engine/router/",
    "engine/steps/": "engine/base/ engine/methods/ engine/steps/",
    "engine/runtime/": "engine/base/ engine/router/ engine/runtime/ engine/scheduler/",
    "engine/metrics/": "engine/base/ engine/metrics/ engine/runtime/",
    "engine/recorder/": "engine/base/ engine/kv/ engine/methods/ engine/recorder/ engine/runtime/ traces/proto/",
    "engine/common/": "engine/base/ engine/chat/ engine/common/ engine/kv/ engine/methods/ engine/runtime/ kernels/ models/",
    "engine/cpu/": "engine/base/ engine/common/ engine/cpu/ engine/methods/ engine/runtime/ kernels/ models/",
    "engine/cuda/": "engine/base/ engine/common/ engine/cpu/compression/ engine/cuda/ engine/methods/ engine/runtime/ "
                    "engine/steps/ kernels/ models/",
    "engine/calibrate/": "engine/base/ engine/calibrate/ engine/common/ engine/cuda/ kernels/ models/",
    "kernels/": "kernels/ engine/base/",
    "models/": "models/ engine/base/ kernels/grids/ traces/proto/",
    "sim/": "sim/ engine/base/ engine/kv/ engine/methods/ engine/recorder/ engine/runtime/ engine/steps/ kernels/grids/ "
            "models/",
    "kernels/grids/": "kernels/grids/ engine/base/",
    "traces/": "traces/ engine/base/",
    "traces/replay/": "traces/ engine/base/ engine/runtime/",
    "scenarios/": "scenarios/ engine/ sim/ models/ traces/ kernels/ reports/",
    "reports/": "reports/ engine/base/ traces/proto/",
}.items()}

# Words of an #include, and where it is allowed.
PROTOBUF = "traces/ models/ scenarios/ reports/ engine/recorder/ tests/"
OUTSIDE_LIBRARIES = {
    "simgrid": "sim/ tests/unit/sim/ tests/bench/",
    "xbt/": "sim/ tests/unit/sim/",
    "cuda": "kernels/ engine/cuda/ tests/unit/cuda_kernels/",
    "google/protobuf": PROTOBUF,
    ".pb.h": PROTOBUF,
}

# All decision code: one library (kvtwin_policy) that links kvtwin_base alone; and the types of its interface.
POLICY = ("engine/kv/", "engine/methods/", "engine/scheduler/", "engine/router/", "engine/base/commands",
          "engine/base/events.h", "engine/base/identity.h", "engine/base/prompt_span", "engine/base/tags.h")


def words_pattern(words):
    return re.compile(rf"(?<!\w)(?:{'|'.join(words)})(?!\w)")


BANNED_IN_POLICY = words_pattern(
    "chrono random thread mutex atomic fstream iostream cstdio printf getenv unordered_map unordered_set std::hash double "
    "float rand time clock simgrid cuda CUDA throw try catch".split())
# A member's name ends with an underscore.
BANNED_IN_SCHEDULER = words_pattern(word + "_?" for word in (
    "KvKind PagedKvManager GroupedKvManager MixedPrecisionKvManager ResidentKvManager SlotRetention slot_retention "
    "keeps_all by_group by_chunk by_tag staged uses_host uses_resident needs_resident resident mixed snapshots arena dual "
    "placement precision retrieval layout scorer budget_spec dynamic_cast").split())
# Names of methods with another meaning.
ORDINARY = set("none all ratio uniform pyramid reserved random paged ring compact gpu host resident shared session lru lfu "
               "aot released ada external".split())
# These count only where the other side of a comparison is called like the axis.
ALSO_VALUES = set("bf16 fp8 int4 fp4 ragged session".split())

FILE_LINES, FUNCTION_LINES, COLUMNS = 500, 70, 110


def read_sources(folders, endings):
    """All files under `folders`, and in the root, with one of these endings, sorted by path."""
    found = [path for path in SOURCE.iterdir() if path.is_file()]
    for folder in folders:
        found += (SOURCE / folder).rglob("*")
    out = {}
    for path in found:
        if path.suffix in endings and "node_modules" not in path.parts and path.is_file():
            name = path.relative_to(SOURCE).as_posix()
            out[name] = File(name, path.read_text(errors="surrogateescape"))
    return [out[name] for name in sorted(out)]


LITERAL = re.compile(r"//[^\n]*|/\*.*?\*/|" r'R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\])*"|' r"(?<!\w)'(?:\\.|[^'\\])*'", re.S)


def code_only(text):
    """The text with comments and the contents of literals blanked out; line breaks stay."""
    return LITERAL.sub(lambda found: re.sub(r"[^\n]", " ", found.group()), text)


def numbered(text):
    return enumerate(text.split("\n"), 1)


def includes_of(text):
    """(line, name with its quote or bracket)"""
    for number, line in numbered(text):
        if found := re.match(r'#include (["<].*)[">]', line):
            yield number, found.group(1)


def includes(file):
    folder = max((folder for folder in MAY_INCLUDE if file.path.startswith(folder)), key=len, default=None)
    for number, target in includes_of(file.text):
        if target[0] == '"' and folder and not target[1:].startswith(MAY_INCLUDE[folder]):
            yield f"{file.path}:{number}: {folder} may not include {target}"
        for word, places in OUTSIDE_LIBRARIES.items():
            library = target[0] == "<" or ".pb.h" in target
            if library and word in target and not file.path.startswith(tuple(places.split())):
                yield f"{file.path}:{number}: {target} belongs to {places.split()[0]} alone"


def folder_cycles(files):
    """Folders that include one another: "a -> b -> a"."""
    graph = collections.defaultdict(set)
    for file in files:
        here = file.path.rpartition("/")[0]
        for _, target in includes_of(file.text):
            there = target[1:].rpartition("/")[0]
            if target[0] == '"' and there and there != here:
                graph[here].add(there)
    done = set()

    def follow(way):
        for there in sorted(graph.get(way[-1], ())):
            if there in way:
                yield " -> ".join([*way[way.index(there):], there])
            elif there not in done:
                yield from follow([*way, there])
        done.add(way[-1])

    for folder in sorted(graph):
        if folder not in done:
            yield from follow([folder])


def policy_words(file):
    if file.path.startswith(POLICY):
        for number, line in numbered(code_only(file.text)):
            for word in BANNED_IN_POLICY.findall(line):
                yield f"{file.path}:{number}: {word} is banned in the policy"


def scheduler_words(file, methods):
    """The scheduler tests no way in which KV is laid out, and names no method."""
    if not file.path.startswith("engine/scheduler/"):
        return
    for number, line in numbered(code_only(file.text)):
        for word in BANNED_IN_SCHEDULER.findall(line):
            yield f"{file.path}:{number}: {word} is a KV manager's business"
    names = words_pattern(methods) if methods else re.compile("(?!)")
    for number, line in numbered(file.text):
        for name in names.findall(line):
            yield f"{file.path}:{number}: names the method {name}"


def unmistakable(methods):
    """Names that have no other meaning."""
    return [name for _, name in methods if name not in ORDINARY]


def method_names(file, methods):
    """A comparison with a method's name outside engine/methods. `methods`: (axis, name)."""
    folders = ("engine/", "scenarios/", "sim/", "models/", "kernels/")
    if not file.path.startswith(folders) or file.path.startswith("engine/methods/"):
        return
    alone = set(unmistakable(methods)) - ALSO_VALUES
    for number, line in numbered(file.text):
        for compared in re.finditer(r'[!=]= "([^"]+)"', line):
            left = line[:compared.start()].rstrip(" ()")
            for axis, name in methods:
                if name == compared.group(1) and (left.endswith(axis) or name in alone):
                    yield (f"{file.path}:{number}: compares with {axis} {name}; ask its traits "
                           "(engine/methods/traits.h)")


def files_naming(files, name):
    """The files in which `name` (in lower case) occurs in any case, outside comments."""
    return [file.path for file in files if name in re.sub(r"//[^\n]*", "", file.text).lower()]


def count_fields(text, name):
    """Data members of `struct NAME`; 0: there is no such struct."""
    body = code_only(text).partition(f"struct {name} {{")[2].partition("\n};")[0]
    return sum(1 + line.count(",") for line in body.split("\n")
               if ";" in line and "(" not in line and "enum " not in line)


def lengths(file):
    code = code_only(file.text)
    lines = file.text.split("\n")
    for number, (line, bare) in enumerate(zip(lines, code.split("\n")), 1):
        # A literal cannot always be broken; a comment can.
        inside_literal = not bare.strip(" ") and "//" not in line
        if len(line) > COLUMNS and '"' not in line and not inside_literal:
            yield f"{file.path}:{number}: more than {COLUMNS} columns"
    if file.text.count("\n") > FILE_LINES:
        yield f"{file.path}:{file.text.count(chr(10))}: a file of more than {FILE_LINES} lines"
    # A function starts where a brace opens after a parenthesis outside any other function.
    scope = words_pattern(("namespace", "class", "struct", "union", "enum", "extern"))
    depth, function_depth, function_line, begin, line = 0, None, 0, 0, 1
    for mark in re.finditer(r"[{};]", code):
        head = code[begin:mark.start()]
        head_line = line + head[:len(head) - len(head.lstrip())].count("\n")
        line += head.count("\n")
        begin = mark.end()
        if mark.group() == "{":
            if function_depth is None and "(" in head and not scope.search(head):
                function_depth, function_line = depth, head_line
            depth += 1
        elif mark.group() == "}":
            depth -= 1
            if depth == function_depth:
                function_depth = None
                if line - function_line + 1 > FUNCTION_LINES:
                    yield f"{file.path}:{function_line}: a function of {line - function_line + 1} lines"


def guard(file):
    """A header's guard is its path."""
    name = "KVTWIN_" + re.sub(r"\W", "_", file.path).upper() + "_"
    if f"#ifndef {name}\n#define {name}\n" not in file.text or f"#endif  // {name}\n" not in file.text:
        yield f"{file.path}: its guard should be {name}"


def own_header_first(file):
    own = '"' + file.path.rpartition(".")[0] + ".h"
    for number, target in includes_of(file.text):
        if target != own:
            yield f'{file.path}:{number}: {own}" should be included first'
        return


def left_overs(file):
    """Notes to self, paths of other machines."""
    words = ("FIX" + "ME", "Co-auth" + "ored", "/wo" + "rk/")  # split in two, so that this file passes its own test
    for number, line in numbered(file.text):
        for word in words:
            if word in line:
                yield f"{file.path}:{number}: {word}"


def retired(file, names):
    """None of the old identifiers, as a whole word. `names`: old -> new."""
    if file.path != "engine/base/retired_names.h":  # which names them to users
        for number, line in numbered(file.text):
            for word in re.findall(r"\w+", line, re.A):
                if word in names:
                    yield f"{file.path}:{number}: {word} is called {names[word]} now"
