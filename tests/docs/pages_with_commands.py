#!/usr/bin/env python3
"""Every page with command blocks is among the pages given, which are those that are tested.

Usage: pages_with_commands.py PAGE...
"""

import sys

import check_links
import markdown
import run_commands


def has_commands(page):
    for fence in markdown.fences(page.read_text(encoding="utf-8")):
        if "skip" not in fence.marks and (run_commands.is_console(fence) or fence.language == "sh"):
            return True
    return False


def main():
    tested = set(sys.argv[1:])
    untested = sorted(str(page.relative_to(markdown.ROOT)) for page in check_links.pages()
                      if has_commands(page) and str(page.relative_to(markdown.ROOT)) not in tested)
    for page in untested:
        print(f"{page} has commands that no test runs: name it in tests/docs/CMakeLists.txt")
    return 1 if untested else 0


if __name__ == "__main__":
    sys.exit(main())
