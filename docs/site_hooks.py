"""MkDocs hooks of the site: pages look as on a forge, and the built pages are checked.

* Headings get the anchors of GitHub, lists nest by two spaces and may hold fences, and lists and tables need no blank
  line above them.
* `DIR/*` in nav stands for all pages of a folder.
* Every local link and anchor of the built pages resolves, and no page loads anything from the network. MkDocs itself
  checks neither anchors nor links in HTML.
"""

import html.parser
import importlib.util
import logging
import os
import re
import shutil
import urllib.parse

from markdown.blockprocessors import build_block_parser
from markdown.extensions import Extension

DOCS = os.path.dirname(os.path.abspath(__file__))
spec = importlib.util.spec_from_file_location("page_text", os.path.join(DOCS, "../tests/docs/page_text.py"))
page_text = importlib.util.module_from_spec(spec)
spec.loader.exec_module(page_text)

log = logging.getLogger("mkdocs.kvtwin")  # below mkdocs, whose warnings are errors with --strict
LIST_ITEM = re.compile(r"[-*+] |\d+\. ")


class TwoSpaces(Extension):
    """The parser of blocks is built again, because its parts copy the length. So this comes before what adds to it."""

    def extendMarkdown(self, md):
        md.tab_length = 2
        md.parser = build_block_parser(md)


def on_config(config):
    config["nav"] = [expanded for expanded in map(expand, config["nav"]) if expanded]
    config["markdown_extensions"].insert(0, TwoSpaces())
    config["mdx_configs"]["toc"] = {"slugify": lambda text, separator: page_text.slug(text), "permalink": True}
    return config


def expand(entry):
    """Replaces DIR/* by the pages of DIR: dated ones last, the newest first. Returns None for a folder without any."""
    if isinstance(entry, str):
        return entry
    (title, value), = entry.items()
    if isinstance(value, list):
        return {title: [one for one in map(expand, value) if one]}
    if not value.endswith("/*"):
        return entry
    folder = value[:-2]
    path = os.path.join(DOCS, folder)
    names = sorted(name for name in os.listdir(path) if name.endswith(".md")) if os.path.isdir(path) else []
    dated = [name for name in names if re.match(r"\d{4}-", name)]
    pages = [f"{folder}/{name}" for name in names if name not in dated] + [f"{folder}/{name}" for name in dated[::-1]]
    return {title: pages} if pages else None


def on_page_markdown(markdown, page, config, files):
    lines = markdown.splitlines()
    fences, _, prose = page_text.split(lines)
    for fence in fences:
        if fence.indent:  # in a list, where Python-Markdown knows indented code only
            end = fence.line - 1 + len(fence.body)
            lines[fence.line - 1:end] = [" " * (fence.indent // 2 * 2 + 2) + line for line in fence.body]
            lines[fence.line - 2] = lines[end] = ""
    out, previous = [], ""
    for line, plain in zip(lines, prose):
        starts_list = LIST_ITEM.match(plain) and not LIST_ITEM.match(previous) and not re.match(r"\s+\S", previous)
        starts_table = plain.startswith("|") and not previous.startswith("|")
        if previous.strip() and (starts_list or starts_table):
            out.append("")
        out.append(line)
        previous = plain
    return "\n".join(out) + "\n"


class Targets(html.parser.HTMLParser):
    """Ids, links and loaded resources of a built page."""

    def __init__(self):
        super().__init__()
        self.ids, self.links, self.loaded = set(), [], []

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.ids.update(attrs[name] for name in ("id", "name") if attrs.get(name))
        if tag == "a" and attrs.get("href"):
            self.links.append(attrs["href"])
        if tag != "a" and attrs.get("rel") != "canonical":
            self.loaded += [attrs[name] for name in ("href", "src", "srcset", "data") if attrs.get(name)]


def complete_theme(site):
    """Debian's theme names two scripts that it does not have: a newer jQuery than it ships, and one for wide tables."""
    scripts = os.path.join(site, "js")
    for name in os.listdir(scripts):
        wanted = os.path.join(scripts, "jquery-3.6.0.min.js")
        if name.startswith("jquery-") and not os.path.exists(wanted):
            shutil.copyfile(os.path.join(scripts, name), wanted)
    extra = os.path.join(scripts, "theme_extra.js")
    if not os.path.exists(extra):
        with open(extra, "w", encoding="utf-8") as file:
            file.write('$(function () { $("table:not(.docutils)").addClass("docutils"); });\n')


def on_post_build(config):
    complete_theme(config["site_dir"])
    pages = {}
    for folder, _, names in os.walk(config["site_dir"]):
        for path in (os.path.join(folder, name) for name in names):
            if path.endswith((".html", ".css")):
                with open(path, encoding="utf-8") as file:
                    text = file.read()
            if path.endswith(".html") and not is_report(text):
                pages[path] = Targets()
                pages[path].feed(text)
            elif path.endswith(".css"):
                for target in re.findall(r"(?:url\(|@import)\s*[\"']?((?:https?:)?//[^\"')]+)", text):
                    log.warning("%s loads %s from the network", path, target)
    for path, page in pages.items():
        if os.path.basename(path) not in ("404.html", "search.html"):
            check_built_page(os.path.relpath(path, config["site_dir"]), path, page, pages)


def is_report(text):
    """Whether this is a page that kvtwin wrote, not one of the site."""
    return "wy-nav-content" not in text


def check_built_page(name, path, page, pages):
    for target in page.loaded:
        if re.match(r"(https?:)?//", target):
            log.warning("%s loads %s from the network", name, target)
    for target in page.links + page.loaded:
        if re.match(r"[a-zA-Z][a-zA-Z0-9+.-]*:|//", target):
            continue
        to, _, anchor = target.partition("#")
        to = urllib.parse.unquote(to.partition("?")[0])
        resolved = os.path.normpath(os.path.join(os.path.dirname(path), to)) if to else path
        if os.path.isdir(resolved):
            resolved = os.path.join(resolved, "index.html")
        if not os.path.exists(resolved):
            log.warning("%s: the link to %s leads nowhere", name, target)
        elif anchor and resolved in pages and urllib.parse.unquote(anchor) not in pages[resolved].ids:
            log.warning("%s: %s has no such anchor", name, target)
