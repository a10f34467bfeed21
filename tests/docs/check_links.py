#!/usr/bin/env python3
"""Every relative link of the documentation leads to a file of the repository, and every #anchor to one of its headings.

Usage: check_links.py [--root=DIR] [PAGE...]   without a page: every README.md, *.md of the root, and docs/
"""

import argparse
import os
import posixpath
import re
import sys
import urllib.parse

import page_text
import repository

OUTSIDE = re.compile(r"^(?:[a-zA-Z][a-zA-Z0-9+.-]*:|//)")


class Links:
    """`files` are the paths of the repository; `read` returns the text of one."""

    def __init__(self, files, read):
        self.files = set(files)
        self.read = read
        self.folders = {""}
        for path in self.files:
            while path:
                path = posixpath.dirname(path)
                self.folders.add(path)
        self.pages = {}

    def page(self, path):
        if path not in self.pages:
            self.pages[path] = page_text.parse(self.read(path))
        return self.pages[path]

    def errors_of(self, path):
        """Returns one message for each link of the page at `path` that does not resolve."""
        found = []
        for line, target in self.page(path).links:
            problem = self.problem(path, target)
            if problem:
                found.append(f"{path}:{line}: link to {target}: {problem}")
        return found

    def problem(self, path, target):
        if OUTSIDE.match(target):
            return ""
        to, _, anchor = target.partition("#")
        to, anchor = urllib.parse.unquote(to.partition("?")[0]), urllib.parse.unquote(anchor)
        if to.startswith("/"):
            return "is absolute; write it relative to the page"
        resolved = posixpath.normpath(posixpath.join(posixpath.dirname(path), to)) if to else path
        resolved = "" if resolved == "." else resolved
        if resolved.startswith(".."):
            return "leaves the repository"
        if resolved in self.folders:
            readme = posixpath.join(resolved, "README.md")
            if not anchor:
                return ""
            if readme not in self.files:
                return f"{resolved}/ has no README.md, so no anchors"
            resolved = readme
        if resolved not in self.files:
            return f"{resolved} does not exist"
        if not anchor:
            return ""
        if not resolved.endswith(".md"):
            return self.line_problem(resolved, anchor)
        return "" if anchor in self.page(resolved).anchors else f"{resolved} has no anchor #{anchor}"

    def line_problem(self, path, anchor):
        match = re.fullmatch(r"L(\d+)(?:-L(\d+))?", anchor)
        if not match:
            return f"#{anchor} is no line of a file (#L10)"
        last = int(match.group(2) or match.group(1))
        lines = self.read(path).count("\n")
        return "" if last <= lines else f"{path} has {lines} lines"


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--root", default=repository.ROOT)
    parser.add_argument("pages", nargs="*")
    given = parser.parse_args()
    files = repository.files(given.root)
    links = Links(files, lambda path: repository.read(given.root, path))
    pages = [os.path.relpath(os.path.abspath(page), given.root) for page in given.pages] or repository.pages(files)
    errors = [error for page in pages for error in links.errors_of(page)]
    print("\n".join(errors + [f"{len(pages)} pages, {len(errors)} broken links"]))
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
