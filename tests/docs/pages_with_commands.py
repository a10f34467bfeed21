#!/usr/bin/env python3
"""Every page with command blocks is among the pages given, which are those that are tested.

Usage: pages_with_commands.py PAGE...
"""

import sys

import page_text
import repository
import run_commands


def has_commands(page):
    try:
        blocks = run_commands.blocks_of(page, page_text.parse(repository.read(repository.ROOT, page)))
    except run_commands.Malformed as malformed:
        print(malformed)
        return True
    return any(block.commands and not block.skip for block in blocks)


def main():
    tested = set(sys.argv[1:])
    untested = [page for page in repository.pages(repository.files(repository.ROOT))
                if has_commands(page) and page not in tested]
    for page in untested:
        print(f"{page} has commands that no test runs: name it in tests/docs/CMakeLists.txt")
    return 1 if untested else 0


if __name__ == "__main__":
    sys.exit(main())
