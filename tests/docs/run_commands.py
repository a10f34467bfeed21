#!/usr/bin/env python3
"""Runs the command blocks of one documentation page and compares what they print. README.md states the convention.

Usage: run_commands.py KVTWIN PAGE [--slow] [--keep] [--seconds=N] [--root=DIR]
"""

import argparse
import difflib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass

import page_text
import repository

CONSOLE, SHELL = ("console",), ("sh", "bash", "shell")

# Figures that differ from run to run, or from version to version. Where an expected line has one, the actual line may
# have any other.
VARYING = [
    re.compile(r"(?<= s in )[0-9.]+(?= s\))"),       # wall time in a run's first line: "(simulated 16366.1 s in 0.07 s)"
    re.compile(r"(?<=\(commit )[0-9a-f]+(?=\))"),    # kvtwin --version
    re.compile(r"(?<= version=)[0-9.]+"),            # a run's last lines
    re.compile(r"(?<=out/run-)[0-9a-f]{16}"),        # a default --out, which depends on the version too
]


class Malformed(Exception):
    """A page that breaks the convention. Its text has the form page:line: message."""


@dataclass
class Command:
    line: int
    text: str
    expected: list  # None: no output is shown, so only the exit status counts


@dataclass
class Block:
    line: int
    commands: list
    skip: str = ""
    slow: bool = False
    status: int = 0
    stop_at_failure: bool = False  # a fence of sh is one script
    file: str = ""  # the body is written to this file instead of being run
    body: str = ""


def read_directives(page, fence):
    block = Block(fence.line, [])
    for line, text in fence.directives:
        for word in re.split(r",\s*(?![^(]*\))", text):
            if match := re.fullmatch(r"skip \((.+)\)", word):
                block.skip = match.group(1)
            elif word == "slow":
                block.slow = True
            elif match := re.fullmatch(r"exit ([0-9]+)", word):
                block.status = int(match.group(1))
            elif match := re.fullmatch(r"file ([\w./-]+)", word):
                block.file = match.group(1)
            else:
                raise Malformed(f'{page}:{line}: unknown "{word}"; expected skip (REASON), slow, exit N or file PATH')
    return block


def console_commands(page, fence):
    """Splits `$ command` lines from the output that follows each."""
    commands, continued = [], False
    for number, line in enumerate(fence.body, fence.line):
        if continued:
            commands[-1].text += "\n" + re.sub(r"^> ", "", line)
        elif line.startswith("$ "):
            commands.append(Command(number, line[2:], []))
        elif not commands:
            raise Malformed(f"{page}:{number}: output before the first `$ command`")
        else:
            commands[-1].expected.append(line.rstrip())
        continued = (continued or line.startswith("$ ")) and line.endswith("\\")
    for command in commands:
        if not strip_blank_end(command.expected):
            command.expected = None
    return commands


def blocks_of(page, parsed):
    """The blocks of a page that are run or skipped, in order."""
    if parsed.stray_directives:
        raise Malformed(f"{page}:{parsed.stray_directives[0]}: no fence follows this comment")
    blocks = []
    for fence in parsed.fences:
        block = read_directives(page, fence)
        plain = fence.language == "" and fence.body and fence.body[0].startswith("$ ")
        if block.file:
            block.body = "\n".join(fence.body) + "\n"
        elif fence.language in CONSOLE or plain:
            block.commands = console_commands(page, fence)
        elif fence.language in SHELL:
            block.commands = [Command(fence.line, "\n".join(fence.body), None)]
            block.stop_at_failure = True
        elif fence.directives:
            raise Malformed(f"{page}:{fence.directives[0][0]}: the fence after it is not run: neither console nor sh")
        else:
            continue
        for command in [] if block.skip else block.commands:
            for use in re.findall(r"(?:^|[;&|]\s*)\./dev\b[ \t]*([\w-]*)", command.text, re.M):
                if use != "run":
                    raise Malformed(f"{page}:{command.line}: `./dev {use}` is not run by this test: mark the block skip")
        blocks.append(block)
    return blocks


def line_pattern(expected):
    """`...` matches any text, and so does each figure of VARYING any other of its kind."""
    for varying in VARYING:
        expected = varying.sub("\0", expected)
    pattern = re.escape(expected).replace(re.escape("..."), ".*")
    return re.compile(pattern.replace(re.escape("\0"), "[0-9a-f.]+"))


def mismatch(expected, actual):
    """Compares output with its expected lines. Returns "" or the first difference.

    An expected line `...` stands for any number of lines. Blank lines at the end and blanks at the end of a line do
    not count.
    """
    expected = [line.rstrip() for line in strip_blank_end(expected)]
    actual = [line.rstrip() for line in strip_blank_end(actual)]
    at, anchored = 0, True  # anchored: the next expected line is for actual[at], not for a later line
    parts = [[]]
    for line in expected:
        if line.strip() == "...":
            parts.append([])
        else:
            parts[-1].append(line)
    for index, part in enumerate(parts):
        patterns = [line_pattern(line) for line in part]
        last = index == len(parts) - 1

        def matches(begin):
            return begin >= 0 and all(
                begin + i < len(actual) and pattern.fullmatch(actual[begin + i]) for i, pattern in enumerate(patterns))

        if anchored:
            for i, pattern in enumerate(patterns):
                if at + i >= len(actual):
                    return f"expected: {part[i]}\n  but the output ends there"
                if not pattern.fullmatch(actual[at + i]):
                    return f"expected: {part[i]}\n  output:   {actual[at + i]}"
            begin = at
        elif last:
            begin = len(actual) - len(part)
            if begin < at or not matches(begin):
                return "the output does not end with:\n" + indent(part)
        else:
            begin = next((k for k in range(at, len(actual) - len(part) + 1) if matches(k)), -1)
            if begin < 0:
                return not_found(part, actual[at:])
        at, anchored = begin + len(part), False
    if len(parts) == 1 and at < len(actual):
        return f"expected: the end of the output\n  output:   {actual[at]}"
    return ""


def not_found(part, actual):
    text = "these lines do not follow in the output:\n" + indent(part)
    close = difflib.get_close_matches(part[0], actual, 1, 0.6)
    return text + (f"\n  the closest line is:\n{indent(close)}" if close else "")


def strip_blank_end(lines):
    lines = list(lines)
    while lines and not lines[-1].strip():
        lines.pop()
    return lines


def indent(lines):
    return "\n".join("    " + line for line in lines)


class Scratch:
    """A copy of the repository with the tool in build/dev/bin, and one shell whose folder and variables last."""

    def __init__(self, folder, root, files, tool):
        self.folder, self.root = folder, os.path.join(folder, "kvtwin")
        for path in files:
            source, copy = os.path.join(root, path), os.path.join(self.root, path)
            if os.path.lexists(source):
                os.makedirs(os.path.dirname(copy), exist_ok=True)
                shutil.copy2(source, copy, follow_symlinks=False)
        self.place_tool(tool)
        for name in ("home", "tmp"):
            os.mkdir(os.path.join(folder, name))
        self.cwd, self.variables = os.path.join(folder, "cwd"), os.path.join(folder, "variables")
        with open(self.cwd, "w", encoding="utf-8") as file:
            file.write(self.root)
        open(self.variables, "w", encoding="utf-8").close()

    def place_tool(self, tool):
        # A copy, not a link: the tool finds its models and scenarios in share/kvtwin above itself, and they are to be
        # those of this folder.
        self.bin = os.path.join(self.root, "build", "dev", "bin")
        os.makedirs(self.bin)
        shutil.copy2(tool, os.path.join(self.bin, "kvtwin"))
        share = os.path.join(self.root, "build", "dev", "share", "kvtwin")
        os.makedirs(share)
        for name in ("models", "scenarios", "traces"):
            os.symlink(os.path.join(self.root, name), os.path.join(share, name))

    def environment(self):
        kept = {name: value for name, value in os.environ.items() if not name.startswith("KVTWIN_")}
        return kept | {
            "PATH": self.bin + ":" + os.environ.get("PATH", "/usr/bin:/bin"),
            "HOME": os.path.join(self.folder, "home"),
            "TMPDIR": os.path.join(self.folder, "tmp"),
            "LC_ALL": "C.UTF-8",
            "KVTWIN_NO_BUILD": "1",  # ./dev run takes the tool as it is
        }

    def run(self, text, stop_at_failure, seconds):
        """Runs `text` in bash. Returns (exit status, standard output, standard error)."""
        script = os.path.join(self.folder, "script")
        with open(script, "w", encoding="utf-8") as file:
            file.write(f". {shlex.quote(self.variables)}; cd \"$(cat {shlex.quote(self.cwd)})\"\n"
                       f"trap 'export -p > {shlex.quote(self.variables)}; pwd > {shlex.quote(self.cwd)}' EXIT\n"
                       + ("set -e\n" if stop_at_failure else "") + text + "\n")
        # A session of its own, so that all of it can be ended.
        process = subprocess.Popen(["bash", script], env=self.environment(), stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
        try:
            output, errors = process.communicate(timeout=seconds)
            return process.returncode, decode(output), decode(errors)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, errors = process.communicate()
            return -1, decode(output) + f"\n(no end within {seconds} s)", decode(errors)


def decode(output):
    return (output or b"").decode("utf-8", "replace")


def run_block(page, block, scratch, seconds):
    """Returns the messages of what failed: at most one per command, none after one that did."""
    if block.file:
        path = os.path.join(scratch.root, block.file)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(block.body)
        return []
    for command in block.commands:
        status, output, errors = scratch.run(command.text, block.stop_at_failure, seconds)
        expected = block.status if command is block.commands[-1] else 0
        where = f"{page}:{command.line}: `{command.text.splitlines()[0] if command.text else ''}`"
        if status != expected:
            printed = indent((output + errors).splitlines())
            return [f"{where}\n  exit status {status}, expected {expected}; it printed:\n{printed}"]
        if command.expected is None:
            continue
        # Messages on standard error may be shown or left out.
        differences = [mismatch(command.expected, printed.splitlines())
                       for printed in (output, errors + output, output + errors)]
        if all(differences):
            shown = output if output else errors
            difference = differences[0] if output else differences[1]
            return [f"{where}\n  {difference}\n  all of the output:\n{indent(shown.splitlines())}"]
    return []


def run_page(page, tool, root, slow, seconds=600, keep=False):
    """Runs the blocks of a page in order. Returns (how many ran, messages). Later blocks run after one that failed."""
    try:
        blocks = blocks_of(page, page_text.parse(repository.read(root, page)))
    except Malformed as malformed:
        return 0, [str(malformed)]
    blocks = [block for block in blocks if not block.skip and (slow or not block.slow)]
    folder = tempfile.mkdtemp(prefix="kvtwin-docs-")
    try:
        scratch = Scratch(folder, root, repository.files(root), tool)
        return len(blocks), [message for block in blocks for message in run_block(page, block, scratch, seconds)]
    finally:
        if keep:
            print(f"scratch copy: {folder}")
        else:
            subprocess.run(["rm", "-rf", folder], check=False)


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("kvtwin")
    parser.add_argument("page")
    parser.add_argument("--slow", action="store_true", help="blocks marked slow too")
    parser.add_argument("--keep", action="store_true", help="keep the scratch copy")
    parser.add_argument("--seconds", type=int, default=600, help="that one command may take")
    parser.add_argument("--root", default=repository.ROOT)
    given = parser.parse_args()
    page = os.path.relpath(os.path.abspath(given.page), given.root)
    ran, errors = run_page(page, os.path.abspath(given.kvtwin), given.root, given.slow, given.seconds, given.keep)
    print("\n".join(errors + [f"{page}: {ran} blocks run, {len(errors)} failed"]))
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
