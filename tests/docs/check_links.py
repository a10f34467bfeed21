#!/usr/bin/env python3
"""Every relative link of the documentation leads to a file of the repository, and every #anchor to a heading of it.

Usage: check_links.py [PAGE...]     without a page: README.md, CONTRIBUTING.md, CHANGELOG.md, every other README and docs/
"""

import pathlib
import subprocess
import sys

import markdown


def pages():
    tracked = subprocess.run(["git", "-C", str(markdown.ROOT), "ls-files", "*.md"], capture_output=True, text=True)
    names = tracked.stdout.split()
    if not names:  # a released archive is no checkout
        names = [str(p.relative_to(markdown.ROOT)) for p in markdown.ROOT.rglob("*.md")
                 if not {"node_modules", "build"} & set(p.parts)]
    return [markdown.ROOT / name for name in names]


def errors_of(page):
    """What is wrong with the links of a page, one text each."""
    text = page.read_text(encoding="utf-8")
    out = []
    for line, target in markdown.links(text):
        if "://" in target or target.startswith("mailto:"):
            continue
        path, _, anchor = target.partition("#")
        to = page if not path else (page.parent / path).resolve()
        where = f"{page}:{line}: {target}"
        if not to.exists():
            out.append(f"{where}: there is no {to}")
        elif anchor and to.suffix == ".md" and anchor not in markdown.anchors(to.read_text(encoding="utf-8")):
            out.append(f"{where}: {to.name} has no heading #{anchor}")
    return out


def main():
    given = [pathlib.Path(name).resolve() for name in sys.argv[1:]] or pages()
    errors = [error for page in given for error in errors_of(page)]
    print("\n".join(errors))
    print(f"{len(given)} pages, {len(errors)} broken links")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
