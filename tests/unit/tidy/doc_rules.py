"""Rules about references to the documentation (docs/contributing/style.md#references): generators of findings,
"path:line: problem". Links of Markdown pages are checked by tests/docs.
"""

import re

REFERENCE = re.compile(r"(?<![\w./-])(docs/[\w./-]*?\.md)", re.A)
ANCHOR = re.compile(r"#([^\W_][\w-]*)", re.A)
# After an anchor: `, ` or ` and ` before a further one of the same page, possibly on the next comment line.
FURTHER = re.compile(r"(,)? *(and)? *(?:\n *(?://|# )? *)?(and )? *")


def place(file, at):
    return f"{file.path}:{1 + file.text.count(chr(10), 0, at)}: "


def slug_of(heading):
    """Of a heading of plain words, where forges and site generators agree; None for other headings."""
    return heading.lower().replace(" ", "-") if re.fullmatch(r"[A-Za-z0-9 -]+", heading) else None


def read_anchors(pages):
    """The valid anchors of each page: ids of `<a id="...">`, and headings of plain words."""
    return {page.path: set(re.findall(r'<a id="([^"]*)"', page.text)) |
            {slug_of(heading) for heading in re.findall(r"^#+ (.*)$", page.text, re.M)} for page in pages}


def references(file, anchors):
    """A path under docs/ resolves wherever it appears: PAGE.md, PAGE.md#anchor or PAGE.md#anchor, #other."""
    for found in REFERENCE.finditer(file.text):
        page = found.group(1)
        if page not in anchors:
            yield place(file, found.start()) + page + " does not exist"
            continue
        anchor = ANCHOR.match(file.text, found.end())
        while anchor:
            if anchor.group(1) not in anchors[page]:
                yield place(file, anchor.start()) + f"{page} has no anchor #{anchor.group(1)}"
            between = FURTHER.match(file.text, anchor.end())
            anchor = ANCHOR.match(file.text, between.end()) if any(between.groups()) else None


# Split in two, so that this file passes its own test.
RETIRED = ["METH" + "ODS", "DES" + "IGN", "TRA" + "CES", "KERN" + "ELS", "ARCHIT" + "ECTURE"]
AMBIGUOUS = ["SIMG" + "RID", "STY" + "LE"]  # these have other uses too
RETIRED_DOCUMENT = re.compile(
    rf"(?<!\w)(?:(?:{'|'.join(RETIRED)})(?!\w)|(?:{'|'.join(AMBIGUOUS)})(?=\.md|'s| \d))", re.A)


def retired_documents(file):
    """Documents that are not in the repository are not referenced."""
    for found in RETIRED_DOCUMENT.finditer(file.text):
        yield place(file, found.start()) + found.group() + " is no document of the repository: name a page of docs/"
