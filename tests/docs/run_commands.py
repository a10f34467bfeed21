#!/usr/bin/env python3
"""Runs the command blocks of one documentation page and compares what they print.

Usage: run_commands.py KVTWIN PAGE [--slow] [--root=DIR]

Blocks of a page run in order, in one scratch copy of the repository's tracked files, with KVTWIN first on PATH and at
build/dev/bin/kvtwin.

  ```console   lines `$ command`, each followed by the output that is expected of it. A line `...` stands for any number
               of lines, and `...` inside a line for any text; a command that ends with a backslash goes on in the next
               line. Without output only the exit status is judged. What stands in a block is standard output; messages
               of standard error are not compared. Seconds of wall time, as in `(simulated 9 s in 0.07 s)`, match any.
  ```sh        one script; only its exit status is judged.
  ```          as console, where the first line begins with `$ `.

Other fences are not run. A comment on the line before a fence says how it is run:
  <!-- test: skip (why) -->   not at all     <!-- test: slow -->   only with --slow     <!-- test: exit 1 -->   the status
`./dev run` stands for the tool's run of its arguments (of the small shipped scenario without): what it builds is what
is tested.
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import markdown

LIMIT_S = 600
WALL_TIME = re.compile(r" in [0-9.]+ s\)$")


def copy_of_repository(root, folder, kvtwin):
    listed = subprocess.run(["git", "-C", str(root), "ls-files", "-z"], capture_output=True, check=False)
    names = [name for name in listed.stdout.decode().split("\0") if name]
    if not names:  # a released archive is no checkout
        names = [str(p.relative_to(root)) for p in root.rglob("*")
                 if p.is_file() and not {"node_modules", "build", ".git"} & set(p.parts)]
    for name in names:
        if not (root / name).is_file():
            continue  # removed, and not yet committed
        to = folder / name
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / name, to)
    tool = folder / "build/dev/bin/kvtwin"
    tool.parent.mkdir(parents=True, exist_ok=True)
    tool.symlink_to(kvtwin)


def commands_of(fence):
    """(command, expected lines) of a console fence."""
    out, go_on = [], False
    for line in fence.lines:
        if go_on:
            out[-1][0] += "\n" + line
        elif line.startswith("$ "):
            out.append([line[2:], []])
        elif out:
            out[-1][1].append(line)
        go_on = (go_on or line.startswith("$ ")) and line.endswith("\\")
    return out


def pattern_of(line):
    line = WALL_TIME.sub(" in ... s)", line)
    return re.compile(".*".join(re.escape(part) for part in line.rstrip().split("...")) + r"\s*")


def difference(expected, printed):
    """None where the output is as expected; else the first expected line that is not there."""
    at, skipping = 0, False
    for line in expected:
        if line.strip() == "...":
            skipping = True
            continue
        pattern = pattern_of(line)
        if skipping:
            while at < len(printed) and not pattern.fullmatch(printed[at]):
                at += 1
        if at >= len(printed) or not pattern.fullmatch(printed[at]):
            return line
        at, skipping = at + 1, False
    if skipping or not [line for line in printed[at:] if line.strip()]:
        return None
    return f"(nothing more, but the command went on: {printed[at]})"


def shell(command, folder, kvtwin):
    environment = dict(os.environ, HOME=str(folder), LC_ALL="C.UTF-8", COLUMNS="120",
                       PATH=f"{folder}/build/dev/bin:{pathlib.Path(kvtwin).parent}:{os.environ['PATH']}")
    environment.pop("KVTWIN_GPU", None)
    command = re.sub(r"(^|&& )\./dev run(?= |$)", r"\1kvtwin run", command)
    command = re.sub(r"kvtwin run$", "kvtwin run scenarios/shipped/coding_agents_small.textproto", command)
    return subprocess.run(["bash", "-euo", "pipefail", "-c", command], cwd=folder, env=environment, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, timeout=LIMIT_S)


def run_one(command, expected, status, folder, kvtwin):
    """None, or what went wrong."""
    try:
        done = shell(command, folder, kvtwin)
    except subprocess.TimeoutExpired:
        return f"ran for more than {LIMIT_S} s"
    if done.returncode != status:
        return f"ended with status {done.returncode} where {status} is expected:\n{(done.stdout + done.stderr)[-2000:]}"
    missing = difference(expected, done.stdout.split("\n")) if any(line.strip() for line in expected) else None
    return None if missing is None else f"does not print\n    {missing}\nbut\n{done.stdout[-4000:]}"


def is_console(fence):
    return fence.language == "console" or (not fence.language and fence.lines and fence.lines[0].startswith("$ "))


def run_page(page, kvtwin, root, slow):
    """(commands run, errors) of a page."""
    ran, errors = 0, []
    with tempfile.TemporaryDirectory(prefix="kvtwin-docs-") as scratch:
        folder = pathlib.Path(scratch)
        copy_of_repository(root, folder, kvtwin)
        for fence in markdown.fences(page.read_text(encoding="utf-8")):
            runs = is_console(fence) or fence.language == "sh"
            if not runs or "skip" in fence.marks or ("slow" in fence.marks and not slow):
                continue
            status = int(fence.marks.get("exit", 0))
            commands = commands_of(fence) if is_console(fence) else [["\n".join(fence.lines), []]]
            for number, (command, expected) in enumerate(commands, 1):
                # Of several commands of a block only the last may fail.
                wanted = status if number == len(commands) else 0
                problem = run_one(command, expected, wanted, folder, kvtwin)
                ran += 1
                if problem:
                    errors.append(f"{page}:{fence.line}: `{command}` {problem}")
    return ran, errors


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("kvtwin")
    parser.add_argument("page")
    parser.add_argument("--slow", action="store_true")
    parser.add_argument("--root", default=str(markdown.ROOT))
    given = parser.parse_args()
    ran, errors = run_page(pathlib.Path(given.page).resolve(), pathlib.Path(given.kvtwin).resolve(),
                           pathlib.Path(given.root).resolve(), given.slow)
    print("\n".join(errors))
    print(f"{given.page}: {ran} commands, {len(errors)} wrong")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
