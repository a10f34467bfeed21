#!/usr/bin/env python3
"""Gathers the pages of the documentation's site, for ./dev docs.

Usage: docs/site.py FOLDER

On a forge, pages link to files outside of docs (a README, a report, a scenario). A site has only what is in its folder,
so docs/ is copied to FOLDER and each file that a page links to is copied to FOLDER/repository, at its own path; links are
rewritten to match. A link to something that is not there is left as it is, and mkdocs then fails on it.
"""

import os
import pathlib
import re
import shutil
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
GATHERED = (".md", ".svg", ".css")  # of docs/, whether a page links to them or not
LINK = re.compile(r"(\]\(\s*)([^)\s#]+)((?:#[^)\s]*)?(?:\s+\"[^\"]*\")?\s*\))")


class Site:
    def __init__(self, folder):
        self.folder, self.done, self.waiting = folder, set(), []

    def place_of(self, path):
        """Where a file of the repository goes; a folder is its README's."""
        if path.is_dir():
            path = path / "README.md"
        if not path.is_file() or ROOT not in path.parents:
            return None
        inside = DOCS in path.parents
        if inside and path.suffix in GATHERED:
            return self.folder / path.relative_to(DOCS)
        if path not in self.done:
            self.done.add(path)
            self.waiting.append(path)
        # mkdocs takes README.md for a folder's index; files without an extension that a browser shows are shown as text.
        place = self.folder / path.relative_to(DOCS) if inside else self.folder / "repository" / path.relative_to(ROOT)
        return place if path.suffix in (".md", ".svg", ".html", ".csv", ".json") else place.with_name(place.name + ".txt")

    def rewritten(self, page, place, text):
        def replace(found):
            target = found[2]
            if "://" in target or target.startswith("mailto:"):
                return found[0]
            to = self.place_of((page.parent / target).resolve())
            return found[0] if to is None else found[1] + os.path.relpath(to, place.parent) + found[3]

        out, inside = [], False
        for line in text.split("\n"):
            if line.lstrip().startswith("```"):
                inside = not inside
            out.append(line if inside else LINK.sub(replace, line))
        return "\n".join(out)

    def put(self, page, place):
        place.parent.mkdir(parents=True, exist_ok=True)
        if page.suffix == ".md":
            place.write_text(self.rewritten(page, place, page.read_text(encoding="utf-8")), encoding="utf-8")
        else:
            shutil.copyfile(page, place)

    def gather(self):
        for path in sorted(DOCS.rglob("*")):
            if path.is_file() and path.suffix in GATHERED:
                self.put(path, self.folder / path.relative_to(DOCS))
        for name in ("CHANGELOG.md", "CONTRIBUTING.md", "README.md"):
            self.place_of(ROOT / name)
        while self.waiting:
            path = self.waiting.pop()
            self.put(path, self.place_of(path))


def main():
    folder = pathlib.Path(sys.argv[1]).resolve()
    shutil.rmtree(folder, ignore_errors=True)
    Site(folder).gather()


if __name__ == "__main__":
    main()
