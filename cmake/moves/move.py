#!/usr/bin/env python3
"""Moves files to the folders of moves.tsv and makes everything that names one follow. See README.md.

  python3 /tmp/moves/move.py [all|moves|paths|check]     in the checkout's root

moves: renames alone.  paths: what names a moved file.  all (default): both.  check: changes nothing, prints what is wrong.
Exit status 1 if anything is unplaced, left over or does not resolve."""

import collections
import json
import os
import re
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
TOPS = ("engine", "kernels", "models", "sim", "traces", "scenarios", "reports", "tests", "cmake")
CODE = (".h", ".cc", ".cu", ".cuh")
problems = []


def problem(text):
    problems.append(text)
    print(text)


def git_files():
    out = subprocess.check_output(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], text=True)
    return sorted(f for f in set(out.split("\0")) if f and os.path.lexists(f))


def read(path):
    try:
        with open(path, encoding="utf-8", newline="") as file:
            return file.read()
    except UnicodeDecodeError:
        return None


def write(path, text):
    with open(path, "w", encoding="utf-8", newline="") as file:
        file.write(text)


def lines_of(name):
    for line in read(os.path.join(HERE, name)).split("\n"):
        if line.strip() and not line.startswith("#"):
            yield line.split("\t")


# --- rules -----------------------------------------------------------------------------------------------------------


def expand(path):
    match = re.search(r"\{([^{}]*)\}", path)
    if not match:
        return [path]
    return [out for word in match.group(1).split(",") for out in expand(path[:match.start()] + word + path[match.end():])]


class Rules:
    def __init__(self):
        self.files, self.folders, self.mentions = {}, {}, {}
        for old_text, new_text in lines_of("moves.tsv"):
            mention = old_text.startswith("~")
            for old in expand(old_text.lstrip("~")):
                if mention:
                    self.mentions[old] = new_text.rstrip("/")
                elif old.endswith("/"):
                    self.folders[old] = old if new_text == "=" else new_text
                else:
                    new = old if new_text == "=" else new_text + os.path.basename(old) if new_text.endswith("/") else new_text
                    assert old not in self.files, f"moves.tsv: {old} is placed twice"
                    self.files[old] = new

    def place(self, path):
        """Where `path` goes; None: no rule, though its folder has rules."""
        if path in self.files:
            return self.files[path]
        for old in sorted(self.folders, key=len, reverse=True):
            if path.startswith(old):
                return self.folders[old] + path[len(old):]
        return path if "/" not in path else None


def plan(rules, files):
    """old -> new of every file of the tree as it was, whether or not it has been moved already."""
    new_places = set(rules.files.values())
    new_folders = set(rules.folders.values())
    filled = {os.path.dirname(new) for old, new in rules.files.items() if old != new}
    moves = {}
    for path in files:
        if path in new_places or path in rules.files:
            if path in rules.files:
                moves[path] = rules.files[path]
            continue
        new = rules.place(path)
        if new is not None:
            moves[path] = new
        elif any(path.startswith(folder) for folder in new_folders) or \
                os.path.dirname(path) in filled:
            continue  # in a new folder, whoever put it there
        else:
            problem(f"unplaced: {path}")
    targets = collections.Counter(moves.values())
    for new, count in targets.items():
        if count > 1:
            sys.exit(f"{count} files would become {new}: {[o for o, n in moves.items() if n == new]}")
    return moves


def move(rules):
    files = git_files()
    moves = {old: new for old, new in plan(rules, files).items() if old != new}
    there = set(files)
    for old, new in moves.items():
        if new in there and new not in moves:
            sys.exit(f"{old} would overwrite {new}")
    saved = os.path.join(HERE, "map.json")
    if not moves:
        print("nothing to move")
        return
    everything = {path: moves.get(path, path) for path in files}
    write(saved, json.dumps(everything, indent=0))
    for old, new in moves.items():
        os.makedirs(os.path.dirname(new) or ".", exist_ok=True)
        os.rename(old, new + ".moving")
    for new in moves.values():
        os.rename(new + ".moving", new)
    for folder in sorted({os.path.dirname(old) for old in moves}, key=len, reverse=True):
        while folder and os.path.isdir(folder) and not os.listdir(folder):
            os.rmdir(folder)
            folder = os.path.dirname(folder)
    subprocess.check_call(["git", "add", "-A"])
    print(f"{len(moves)} of {len(files)} files moved")


# --- what names a moved file -----------------------------------------------------------------------------------------


class Names:
    """Translates paths as the old tree had them."""

    def __init__(self, rules, files):
        self.files = files
        self.old_of = {new: old for old, new in files.items()}
        self.known = {}  # old file, stem or folder -> new
        children = collections.defaultdict(set)
        for old, new in files.items():
            if old.split("/")[0] not in TOPS:
                continue
            self.known[old] = new
            folder = os.path.dirname(old)
            children[folder].add(os.path.dirname(new))
            stem, new_stem = os.path.splitext(old)[0], os.path.splitext(new)[0]
            if old.endswith(CODE) or old.endswith((".textproto", ".proto")):
                if os.path.isdir(stem):  # engine/metrics now is a folder
                    self.known[stem] = stem
                elif self.known.get(stem, new_stem) == new_stem:
                    self.known[stem] = new_stem
        for folder, targets in children.items():
            if len(targets) == 1:
                self.known.setdefault(folder, next(iter(targets)))
        for old, new in rules.folders.items():
            self.known[old.rstrip("/")] = new.rstrip("/")
        for folder in list(children):  # a parent of folders that stays
            while folder:
                self.known.setdefault(folder, folder if os.path.isdir(folder) else None)
                folder = os.path.dirname(folder)
        self.known.update(rules.mentions)

    def path(self, old):
        """`old` (no trailing slash) in the new tree; None: it names nothing that was there."""
        if old in self.known:
            return self.known[old] or old
        folder, rest = os.path.dirname(old), os.path.basename(old)
        while folder:
            # A program of a build folder, a pattern, a name to be filled in: what lies in a folder that went as a whole.
            if self.known.get(folder):
                return self.known[folder] + "/" + rest
            folder, rest = os.path.dirname(folder), os.path.basename(folder) + "/" + rest
        return None

    def existed(self, old):
        return self.known.get(old) is not None or old in self.files


TOKEN = re.compile(r"[\w.$~{}*?\[\],@+-]*(?:/[\w.$~{}*?\[\],@+-]+)+/?")
LEAD = re.compile(r"^(?:\.{1,2}|\$\w+|\$\{\w+\}|build|dev|fuzz|edit|gpu|core|sanitize|proto|src|)$")
TOP = re.compile(r"(?<![\w.$~{}*?\[\],@+/-])[\w.$~{}*?\[\],@+-]*(?:/[\w.$~{}*?\[\],@+-]+)*/?")


def strip_tail(token):
    """A token without the punctuation of the sentence around it, and that."""
    body = token.rstrip(".,?")
    while body.endswith("]") and "[" not in body or body.endswith("}") and "{" not in body:
        body = body[:-1]
    return body, token[len(body):]


def translate(token, names):
    parts = token.split("/")
    for at, part in enumerate(parts):
        opened = re.match(r"^([\[{*]*)(\w+)$", part)  # "[reports/quality](...)"
        if opened and opened.group(2) in TOPS:
            old = "/".join([opened.group(2)] + parts[at + 1:])
            body, tail = strip_tail(old)
            slash = "/" if body.endswith("/") else ""
            new = names.path(body.rstrip("/"))
            if new is None:
                return token
            return "/".join(parts[:at] + [opened.group(1) + new]) + slash + tail
        if not LEAD.match(part):
            return token
    return token


def relative(token, old_file, new_file, names):
    """A path that starts at the file's own folder; None: it is none."""
    body, tail = strip_tail(token)
    slash = "/" if body.endswith("/") else ""
    old_folder = os.path.dirname(old_file)
    old = os.path.normpath(os.path.join(old_folder, body))
    pattern = "*" in body
    if old.startswith("..") or not (names.existed(old) or pattern and names.existed(os.path.dirname(old))):
        return None
    new = names.path(old) or old
    return os.path.relpath(new, os.path.dirname(new_file) or ".") + slash + tail


def rewrite_tokens(text, old_file, new_file, names):
    kind = os.path.splitext(new_file)[1]

    def one(match):
        token = match.group(0)
        out = translate(token, names)
        if out != token and not token.startswith("."):
            return out
        # Relative ones: links of Markdown, files that a scenario names, scripts' $here/...
        if kind == ".md" and text[max(0, match.start() - 2):match.start()] == "](":
            return relative(token, old_file, new_file, names) or out
        if kind == ".textproto" and text[match.start() - 1] == '"':
            return relative(token, old_file, new_file, names) or out
        return out

    out = re.sub(TOKEN, one, text)
    if kind in (".md", ".textproto"):  # names without a slash
        before = r"\]\(" if kind == ".md" else r'(?:path|profile|tag_map|name|node|checkpoint|scorer_weights|recorded_run): "'
        end = r"(?=[)#])" if kind == ".md" else r'(?=")'
        out = re.sub(f"({before})([\\w-]+(?:\\.[\\w-]+)+){end}",
                     lambda m: m.group(1) + (relative(m.group(2), old_file, new_file, names) or m.group(2)), out)
    return out


def guard(path):
    return "KVTWIN_" + re.sub(r"\W", "_", path).upper() + "_"


def rewrite_code(text, old_file, new_file, names):
    def include(match):
        target = match.group(2)
        if target in names.files:
            new = names.files[target]
        else:
            sibling = os.path.join(os.path.dirname(old_file), target)
            new = names.files.get(os.path.normpath(sibling), target)
        return match.group(1) + new + match.group(3)

    text = re.sub(r'^([ \t]*#[ \t]*include[ \t]*")([^"\n]+)(")', include, text, flags=re.M)
    return re.sub(rf"\b{guard(old_file)}(?!\w)", guard(new_file), text)


# --- CMake -----------------------------------------------------------------------------------------------------------

SOURCE = re.compile(r"^[\w./${}-]+\.(?:cc|cu)$")
LISTS = re.compile(r"^( *)(add_library|add_executable|target_sources|kvtwin_test|kvtwin_bench|set)\(", re.M)
KEYWORDS = {"SOURCES", "LINK", "PRIVATE", "PUBLIC", "INTERFACE", "SEEDS"}


def cmake_path(word, old_dir, new_dir, names):
    for lead, base in (("${PROJECT_SOURCE_DIR}/", ""), ("${CMAKE_CURRENT_SOURCE_DIR}/", old_dir)):
        if word.startswith(lead):
            rest = word[len(lead):]
            old = os.path.normpath(os.path.join(base, rest))
            if not names.existed(old):
                new = names.path(old) if lead.startswith("${PROJECT") else None
                return lead + new if new else word
            new = names.path(old) + ("/" if rest.endswith("/") else "")
            return lead + (os.path.relpath(new, new_dir) if base else new)
    old = os.path.normpath(os.path.join(old_dir, word))
    if ("." in word or "/" in word) and old in names.files:
        return os.path.relpath(names.files[old], new_dir)
    return word


def close_of(text, at):
    depth = 0
    for i in range(at, len(text)):
        depth += {"(": 1, ")": -1}.get(text[i], 0)
        if depth == 0 and text[i] == ")":
            return i
    raise ValueError("no closing parenthesis")


def one_source_a_line(text):
    out, at = "", 0
    for match in iter(lambda: LISTS.search(text, at), None):
        end = close_of(text, match.end() - 1)
        body = text[match.end():end]
        words = body.split()
        out += text[at:match.start()]
        at = end + 1
        if sum(bool(SOURCE.match(w)) for w in words) < 2 or '"' in body or "#" in body:
            out += text[match.start():at]
            continue
        indent = match.group(1) + "  "
        line, after = f"{match.group(1)}{match.group(2)}(" + words[0], False
        lines = []
        for word in words[1:]:
            if SOURCE.match(word):
                lines += [line] if line.strip() else []
                line, after = "", True
                lines.append(indent + ("  " if "SOURCES" in words else "") + word)
            elif word in KEYWORDS:
                lines += [line] if line.strip() else []
                line = indent + word
            else:
                line = (line + " " + word) if line.strip() else indent + word
        lines += [line] if line.strip() else []
        out += "\n".join(lines) + ")"
    return out + text[at:]


def blocks_of(text):
    """Top-level pieces of a CMake file: a command or if()..endif(), with the comments above it and blank lines."""
    lines, out, current, depth, nest = text.split("\n"), [], [], 0, 0
    for line in lines:
        current.append(line)
        code = line.split("#")[0]
        nest += len(re.findall(r"^\s*(?:if|foreach|function|while|macro)\s*\(", code))
        nest -= len(re.findall(r"^\s*(?:endif|endforeach|endfunction|endwhile|endmacro)\s*\(", code))
        depth += code.count("(") - code.count(")")
        if depth == 0 and nest == 0 and code.strip():
            out.append("\n".join(current))
            current = []
    if any(line.strip() for line in current):
        out.append("\n".join(current))
    return out


def rewrite_cmake(old_file, new_file, text, splits, names):
    """{path: text}: `text` at its new place, and what of it goes to files of their own."""
    old_dir = os.path.dirname(old_file)
    pieces = collections.OrderedDict([(new_file, [])])
    for block in blocks_of(text):
        target = new_file
        for old, pattern, new in splits:
            if old == old_file and re.search(pattern, block):
                target = new
        new_dir = os.path.dirname(target)
        block = re.sub(r"[^\s()\";]+", lambda m: cmake_path(m.group(0), old_dir, new_dir, names), block)
        pieces.setdefault(target, []).append(block)
    out = {}
    for path, blocks in pieces.items():
        text = one_source_a_line("\n".join(blocks).strip("\n") + "\n")
        for old, new in ((old_dir, os.path.dirname(path)),):
            text = re.sub(rf"^(# ){re.escape(old)}( +--)", rf"\1{new}\2", text, flags=re.M)
        out[path] = text
    return out


# --- all of it -------------------------------------------------------------------------------------------------------


def skipped(path):
    if path.startswith(("tests/golden/", "tests/fuzz/")) and not path.endswith((".md", ".sh", ".py", ".cc", "CMakeLists.txt")):
        return True
    return path in ("LICENSE", "CHANGELOG.md") or path.startswith(("cmake/moves/", "cmake/rename/")) or \
        path.endswith((".html", ".svg", ".css", ".js", "package-lock.json", ".kvtrace", ".csv", ".safetensors")) or \
        re.match(r"reports/.*/.*\.txt$", path) is not None


def rewrite(rules):
    saved = os.path.join(HERE, "map.json")
    if not os.path.exists(saved):
        sys.exit("there is no map.json here: nothing was moved from this copy of the tool")
    files = json.loads(read(saved))
    if os.path.exists(os.path.join(HERE, "done")):
        print("paths were rewritten before")
        return
    names = Names(rules, files)
    edits = [(re.compile(f), re.compile(old, re.M), replacement_of(new), f, old)
             for f, old, new in lines_of("edits.tsv")]
    used = collections.Counter()
    splits = list(lines_of("cmake_splits.tsv"))
    changed, cmake = set(), {}
    for old, new in files.items():
        if skipped(new) or not os.path.isfile(new) or os.path.islink(new):
            continue
        text = before = read(new)
        if text is None:
            continue
        if os.path.basename(old) in ("CMakeLists.txt", "replay.cmake") and "/" in old:
            cmake.update(rewrite_cmake(old, new, text, splits, names))
            text = cmake[new]
        if new.endswith(CODE):
            text = rewrite_code(text, old, new, names)
        # (CMake's own words have been translated; its comments are prose.)
        if old.endswith("CMakeLists.txt") or old.endswith(".cmake"):
            text = re.sub(r"#.*", lambda m: rewrite_tokens(m.group(0), old, new, names), text)
            if "/" not in old or old.startswith("cmake/"):
                text = re.sub(r"^(?!#).*", lambda m: rewrite_tokens(m.group(0), old, new, names), text, flags=re.M)
        else:
            text = rewrite_outside_includes(text, old, new, names)
        if text != before:
            write(new, text)
            changed.add(new)
    for path, text in cmake.items():
        if path not in files.values():
            os.makedirs(os.path.dirname(path), exist_ok=True)
            text = re.sub(r"#.*", lambda m: rewrite_tokens(m.group(0), path, path, names), text)
            write(path, text)
            changed.add(path)
    for path in git_files():
        if path.startswith("tests/golden/h200/") or path.endswith((".safetensors", ".kvtrace", ".html")):
            continue
        matching = [edit for edit in edits if edit[0].search(path)]
        text = before = read(path) if matching and os.path.isfile(path) else None
        for _, pattern, replacement, f, old in matching if text is not None else []:
            text, count = pattern.subn(replacement, text)
            used[(f, old)] += count
        if text is not None and text != before:
            write(path, text)
            changed.add(path)
    for _, _, _, f, old in edits:
        if not used[(f, old)]:
            problem(f"edits.tsv: no match any more: {f}\t{old}")
    code = [path for path in sorted(changed) if path.endswith(CODE)]
    for i in range(0, len(code), 200):
        subprocess.check_call(["clang-format", "-i", *code[i:i + 200]])
    write(os.path.join(HERE, "done"), "")
    print(f"{len(changed)} files rewritten")


def replacement_of(text):
    """What a line of edits.tsv puts in place of a match: @NAME is texts/NAME as it is."""
    if text.startswith("@"):
        whole = read(os.path.join(HERE, "texts", text[1:]))
        return lambda match: match.expand(r"\1") + whole if match.re.groups else whole
    return text.replace("\\t", "\t")


def rewrite_outside_includes(text, old, new, names):
    if not new.endswith(CODE):
        return rewrite_tokens(text, old, new, names)
    return "".join(line if line.lstrip().startswith("#include") else rewrite_tokens(line, old, new, names)
                   for line in text.splitlines(keepends=True))


# --- checks ----------------------------------------------------------------------------------------------------------


def check(rules):
    saved = os.path.join(HERE, "map.json")
    files = json.loads(read(saved)) if os.path.exists(saved) else {}
    tree = git_files()
    there = set(tree)
    for path in tree:
        if not path.endswith(CODE):
            continue
        for target in re.findall(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', read(path), re.M):
            if target not in there and not target.endswith(".pb.h") and \
                    os.path.normpath(os.path.join(os.path.dirname(path), target)) not in there:
                problem(f"{path}: #include \"{target}\" is nowhere")
    moved = {old for old, new in files.items() if old != new}
    gone = {os.path.dirname(old) for old in moved} - {os.path.dirname(path) for path in tree}
    words = moved | {folder for folder in gone if "/" in folder}
    words |= {os.path.splitext(old)[0] for old in moved if old.endswith(CODE)}
    words -= there | {os.path.dirname(path) for path in tree}
    left = 0
    for path in tree:
        text = None if skipped(path) else read(path)
        for number, line in enumerate((text or "").split("\n"), 1):
            for match in TOKEN.finditer(line):
                parts = match.group(0).rstrip(".,").split("/")
                for at in range(len(parts)):
                    if parts[at].lstrip("[{") in TOPS:
                        old = "/".join([parts[at].lstrip("[{")] + parts[at + 1:]).rstrip("/.,]")
                        if old in words or os.path.dirname(old) in words:
                            left += 1
                            problem(f"{path}:{number}: names {old}, which moved")
                        break
    for path in tree:
        if path.endswith(".md") and not skipped(path):
            for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", read(path)):
                if not os.path.exists(os.path.join(os.path.dirname(path), target)):
                    problem(f"{path}: links to {target}, which is not there")
    counts = collections.Counter(os.path.dirname(path) for path in tree)
    for folder, count in sorted(counts.items(), key=lambda kv: -kv[1]):
        if count > 35 and not folder.startswith("tests/golden"):
            print(f"large: {folder} has {count} files")
    for folder in sorted(counts):
        if folder.count("/") > 2 and not folder.startswith("tests/golden/"):
            print(f"deep: {folder}")


def main():
    os.chdir(subprocess.check_output(["git", "rev-parse", "--show-toplevel"], text=True).strip())
    if HERE.startswith(os.getcwd() + os.sep):
        sys.exit("copy this folder out of the checkout first: see README.md")
    rules = Rules()
    what = sys.argv[1] if len(sys.argv) > 1 else "all"
    if what in ("all", "moves"):
        move(rules)
    if what in ("all", "paths"):
        rewrite(rules)
    if what in ("all", "paths", "check"):
        check(rules)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
