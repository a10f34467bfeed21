"""The parts of a Markdown page that the documentation tests look at: fences, links and anchors."""

import html
import re
from dataclasses import dataclass, field

FENCE = re.compile(r"^(\s*)(`{3,}|~{3,})\s*([^`\s]*)[^`]*$")
DIRECTIVE = re.compile(r"^\s*<!--\s*test:\s*(.*?)\s*-->\s*$")
HEADING = re.compile(r"^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$")
LINK = re.compile(r"(!?)\[(?:[^\[\]]|\[[^\[\]]*\])*\]\(\s*(<[^>]*>|[^()\s]*(?:\([^()]*\)[^()\s]*)*)(?:\s+[\"'(][^)]*)?\)")
REFERENCE = re.compile(r"^ {0,3}\[[^\]]+\]:\s*(\S+)")
HTML_LINK = re.compile(r"<(?:a|img|source)\b[^>]*?\b(?:href|src|srcset)\s*=\s*[\"']([^\"']*)[\"']", re.I)
HTML_ID = re.compile(r"<[a-z][^>]*?\b(?:id|name)\s*=\s*[\"']([^\"']+)[\"']", re.I)


@dataclass
class Fence:
    """A fenced block. `line` is the number of its first line of content; `body` has the fence's indent removed."""

    language: str
    line: int
    body: list = field(default_factory=list)
    directives: list = field(default_factory=list)  # (line, text)
    indent: int = 0


@dataclass
class Page:
    fences: list
    links: list  # (line, target)
    anchors: set
    stray_directives: list  # lines of `<!-- test: -->` comments that no fence follows


def slug(heading):
    """The anchor that GitHub gives to a heading, apart from the number that it adds to repeated ones."""
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)", "", heading)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = html.unescape(re.sub(r"</?[a-zA-Z][^>]*>", "", text))
    text = re.sub(r"(?<![\w`])_([^_]+)_(?![\w`])", r"\1", text)
    return re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")


def without_code(line):
    """`line` with spans of inline code blanked, so that no link is found in them."""
    return re.sub(r"(`+)(?!`)(.+?)(?<!`)\1(?!`)", lambda match: " " * len(match.group(0)), line)


def without_comments(lines):
    """`lines` with HTML comments removed, those of several lines too."""
    inside = False
    for line in lines:
        kept = ""
        while line:
            if inside:
                end = line.find("-->")
                inside, line = end < 0, "" if end < 0 else line[end + 3:]
            else:
                begin = line.find("<!--")
                kept, line = (kept + line, "") if begin < 0 else (kept + line[:begin], line[begin + 4:])
                inside = begin >= 0
        yield kept


def split(lines):
    """Separates fences from prose: returns (fences, stray directives, lines of prose with "" in place of fences)."""
    fences, stray, prose = [], [], []
    opened, pending = None, []
    for number, line in enumerate(lines, 1):
        if opened:
            indent, mark, fence = opened
            prose.append("")
            if re.match(rf"^\s*{mark[0]}{{{len(mark)},}}\s*$", line):
                opened = None
            else:
                fence.body.append(line[len(indent):] if line.startswith(indent) else line.lstrip())
            continue
        match = FENCE.match(line)
        directive = DIRECTIVE.match(line)
        if match:
            fences.append(Fence(match.group(3), number + 1, directives=pending, indent=len(match.group(1))))
            opened, pending = (match.group(1), match.group(2), fences[-1]), []
            prose.append("")
        elif directive:
            pending.append((number, directive.group(1)))
            prose.append("")
        else:
            if line.strip():
                stray += [at for at, _ in pending]
                pending = []
            prose.append(line)
    return fences, stray + [at for at, _ in pending], prose


def parse(text):
    """Reads one page."""
    fences, stray, prose = split(text.splitlines())
    links, anchors, repeated = [], set(), {}

    def add_heading(title):
        name = slug(title)
        count = repeated.get(name, 0)
        repeated[name] = count + 1
        anchors.add(name if count == 0 else f"{name}-{count}")

    previous = ""
    for number, line in enumerate(without_comments(prose), 1):
        heading = HEADING.match(line)
        if heading:
            add_heading(heading.group(2))
        elif re.match(r"^ {0,3}(=+|-{2,})\s*$", line) and previous.strip() and not previous.lstrip().startswith(("|", "-", ">")):
            add_heading(previous.strip())
        plain = without_code(line)
        anchors.update(HTML_ID.findall(plain))
        links += [(number, match.group(2).strip("<>")) for match in LINK.finditer(plain)]
        links += [(number, target) for target in REFERENCE.findall(plain) + HTML_LINK.findall(plain)]
        previous = "" if heading else line
    return Page(fences, links, anchors, stray)
