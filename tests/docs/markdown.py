"""What the documentation tests read of Markdown: fences with their marks, links, headings and their anchors."""

import dataclasses
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]

_FENCE = re.compile(r"^(\s*)(```+)\s*(\S*)\s*$")
_MARK = re.compile(r"^\s*<!--\s*test:\s*(.*?)\s*-->\s*$")
_LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(\s*([^)\s]+)(?:\s+\"[^\"]*\")?\s*\)")
_HEADING = re.compile(r"^(#{1,6})\s+(.*?)\s*#*\s*$")
_ANCHOR = re.compile(r"<a\s+(?:id|name)=\"([^\"]+)\"")


@dataclasses.dataclass
class Fence:
    """A fenced block: `language` as written, the lines inside, and what a mark on the line before it says."""

    line: int
    language: str
    lines: list
    marks: dict


def parse_mark(text):
    """`skip (why)`, `slow`, `exit 1`, in one mark or several: {"skip": "why", "slow": "", "exit": "1"}."""
    known = re.fullmatch(r"(skip)\s*\((.+)\)|(slow)|(exit)\s+(\d+)", text)
    if not known:
        raise ValueError(f'"{text}" is no mark; write skip (reason), slow or exit N')
    if known[1]:
        return {"skip": known[2]}
    return {"slow": ""} if known[3] else {"exit": known[5]}


def fences(text):
    """The fenced blocks of a page, in order."""
    out, marks, open_fence, indent, ticks = [], {}, None, "", ""
    for number, line in enumerate(text.split("\n"), 1):
        found = _FENCE.match(line)
        if open_fence is not None:
            if found and found[2].startswith(ticks) and not found[3]:
                out.append(open_fence)
                open_fence = None
            else:
                open_fence.lines.append(line[len(indent):] if line.startswith(indent) else line)
            continue
        mark = _MARK.match(line)
        if mark:
            marks.update(parse_mark(mark[1]))
        elif found:
            indent, ticks = found[1], found[2]
            open_fence, marks = Fence(number, found[3], [], marks), {}
        elif line.strip():
            marks = {}
    if open_fence is not None:
        raise ValueError(f"line {open_fence.line}: the fence is not closed")
    return out


def prose(text):
    """The lines outside of fences, numbered; what stands between backticks is blanked."""
    inside = ""
    for number, line in enumerate(text.split("\n"), 1):
        found = _FENCE.match(line)
        if found and (not inside or (found[2].startswith(inside) and not found[3])):
            inside = "" if inside else found[2]
            continue
        if not inside:
            yield number, line


def links(text):
    """(line, target) of every link and picture of a page."""
    for number, line in prose(text):
        for found in _LINK.finditer(re.sub(r"`[^`]*`", "``", line)):
            yield number, found[1]


def anchors(text):
    """The anchors that a forge gives a page: of headings (lower case, blanks to hyphens, a number where one is there
    twice), and written ones."""
    out, seen = set(), {}
    for _, line in prose(text):
        out.update(_ANCHOR.findall(line))
        found = _HEADING.match(line)
        if not found:
            continue
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", found[2]).lower()
        slug = re.sub(r"[^\w\- ]", "", words.replace("`", "")).replace(" ", "-")
        count = seen.get(slug, 0)
        seen[slug] = count + 1
        out.add(slug if count == 0 else f"{slug}-{count}")
    return out
