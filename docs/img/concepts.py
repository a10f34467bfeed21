#!/usr/bin/env python3
"""Draws docs/img/concepts.svg: a request, its logical pages, its page table, pages with slots, and the tiers.

  docs/img/concepts.py        writes the picture next to this script
"""

import os

HERE = os.path.dirname(os.path.abspath(__file__))
WIDTH, HEIGHT = 1080, 540
LEFT, TOKEN = 150, 36  # of the token strip
PAGE_TOKENS, PROMPT, TOKENS = 4, 11, 15  # a page of of four slots here
POOL_LEFT, POOL_STEP, POOL_WIDTH = 150, 46, 38
TABLE = [2, 3, 8, 6]  # pages of the request, by logical page
SHARED = {2, 3}  # a prefix that other requests reuse
OTHERS = {0, 5, 10}  # pages of other requests

STYLE = """
  .paper { fill: #ffffff } text { fill: #24292f; font: 13px system-ui, "DejaVu Sans", sans-serif }
  .title { font-weight: 600; font-size: 14px } .small { font-size: 11.5px } .soft { fill: #57606a }
  .free { fill: #ffffff; stroke: #8c959f } .prompt { fill: #ddf4ff; stroke: #0969da } .output { fill: #fff1e5; stroke: #bc4c00 }
  .shared { fill: #dafbe1; stroke: #1a7f37 } .other { fill: #eaeef2; stroke: #8c959f } .tier { fill: #f6f8fa; stroke: #8c959f }
  .line { fill: none; stroke: #57606a; stroke-width: 1.2 } .arrow { fill: none; stroke: #57606a; stroke-width: 1.4; marker-end: url(#head) }
  .dashed { stroke-dasharray: 4 3 } .cross { stroke: #cf222e; stroke-width: 2 } #head path { fill: #57606a }
  @media (prefers-color-scheme: dark) {
    .paper { fill: #0d1117 } text { fill: #e6edf3 } .soft { fill: #9ea7b3 }
    .free { fill: #0d1117; stroke: #6e7681 } .prompt { fill: #0c2d4f; stroke: #4493f8 } .output { fill: #3d2100; stroke: #db6d28 }
    .shared { fill: #0f3320; stroke: #3fb950 } .other { fill: #21262d; stroke: #6e7681 } .tier { fill: #161b22; stroke: #6e7681 }
    .line, .arrow { stroke: #9ea7b3 } .cross { stroke: #f85149 } #head path { fill: #9ea7b3 }
  }
"""


def text(x, y, content, kind="", anchor="middle"):
    return f'<text class="{kind}" x="{x}" y="{y}" text-anchor="{anchor}">{content}</text>'


def rect(kind, x, y, width, height):
    return f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="3"/>'


def arrow(path, kind="arrow"):
    return f'<path class="{kind}" d="{path}"/>'


def name(y, title, note=""):
    """What a row of the picture shows, on its left."""
    return [text(24, y, title, "title", "start")] + ([text(24, y + 16, note, "small soft", "start")] if note else [])


def page_x(page):
    return POOL_LEFT + POOL_STEP * page


def logical_x(index):
    """The middle of a logical page."""
    return LEFT + TOKEN * (PAGE_TOKENS * index + PAGE_TOKENS / 2)


def draw_request():
    out = name(52, "request", "tokens")
    for position in range(TOKENS):
        x = LEFT + TOKEN * position
        out += [rect("prompt" if position < PROMPT else "output", x, 34, TOKEN - 4, 28),
                text(x + TOKEN / 2 - 2, 53, position, "small")]
    out += [text(LEFT + TOKEN * PROMPT / 2, 26, "prompt", "small soft"),
            text(LEFT + TOKEN * (PROMPT + TOKENS) / 2, 26, "output", "small soft"),
            *name(96, "logical pages", "token positions")]
    for index in range(len(TABLE)):
        x = LEFT + TOKEN * PAGE_TOKENS * index
        end = x + TOKEN * PAGE_TOKENS - 8
        out += [arrow(f"M{x},72v8H{end}v-8", "line"), text((x + end) / 2, 98, f"logical page {index}", "small")]
    return out


def draw_table():
    out = name(146, "page table", "one per head group")
    for index, page in enumerate(TABLE):
        x = logical_x(index)
        out += [arrow(f"M{x},104V126"), rect("free", x - 30, 130, 60, 28), text(x, 149, f"page {page}"),
                arrow(f"M{x},158L{page_x(page) + POOL_WIDTH / 2},216")]
    return out


def draw_pool():
    out = name(240, "page pool", "of one tier")
    for page in range(12):
        kind = "shared" if page in SHARED else "prompt" if page in TABLE else "other" if page in OTHERS else "free"
        out += [rect(kind, page_x(page), 220, POOL_WIDTH, 34), text(page_x(page) + POOL_WIDTH / 2, 242, page, "small")]
    for x, kind, label in [(150, "prompt", "only this request"), (296, "shared", "prefix, reused by others"),
                           (478, "other", "other requests"), (604, "free", "free")]:
        out += [rect(kind, x, 506, 14, 14), text(x + 20, 518, label, "small soft", "start")]
    return out


def draw_page():
    """One page of the pool, enlarged."""
    left, top, width = 150, 318, 140
    x = page_x(TABLE[2])
    out = [*name(346, "page 8", "of four slots here"),
           arrow(f"M{x},254L{left},{top}", "line dashed"),
           arrow(f"M{x + POOL_WIDTH},254L{left + 4 * width},{top}", "line dashed")]
    for slot in range(PAGE_TOKENS):
        position = 2 * PAGE_TOKENS + slot
        x = left + width * slot
        out += [rect("output" if position >= PROMPT else "prompt", x, top, width - 6, 62),
                text(x + 10, top + 18, f"slot {slot}", "small soft", "start")]
        if slot == 1:
            out += [arrow(f"M{x + 34},{top + 26}l50,26m0,-26l-50,26", "cross")]
        else:
            out += [text(x + width / 2 - 3, top + 38, f"KV of token {position}", "small"),
                    text(x + width / 2 - 3, top + 53, "in each head", "small soft")]
    return out + [
        text(left, top + 86, "KV entry: K and V of one token in one KV head. Slot 1: its entry was dropped by a compression;", "small", "start"),
        text(left, top + 102, "layouts that keep slots leave it empty, compact layouts move the retained entries together.", "small", "start"),
        text(left, top + 128, "A step allocates pages as tokens cross page borders. Finished and preempted requests leave whole pages", "small soft", "start"),
        text(left, top + 144, "in the prefix cache, where they stay until they are evicted.", "small soft", "start")]


def draw_tiers():
    left, width, middle = 832, 216, 940
    out = [text(middle, 30, "tiers", "title")]
    for y, title, lines in [(46, "GPU", ["pages that steps read and write"]),
                            (216, "host", ["copies of prefixes; all pages of", "requests with resident pages"]),
                            (386, "disk", ["prefixes that the host evicts"])]:
        out += [rect("tier", left, y, width, 74), text(middle, y + 24, title, "title")]
        out += [text(middle, y + 44 + 16 * index, line, "small soft") for index, line in enumerate(lines)]
    return out + [
        arrow("M880,120V212"), arrow("M1000,216V124"),
        text(872, 150, "offload", "small", "end"), text(872, 170, "swap out", "small", "end"),
        text(992, 146, "load", "small", "end"), text(992, 164, "swap in", "small", "end"), text(992, 182, "recall", "small", "end"),
        arrow("M880,290V382"), arrow("M1000,386V294"), text(872, 340, "spill", "small", "end"), text(992, 340, "load", "small", "end"),
        text(middle, 484, "recall: pages that sparse attention chose", "small soft"),
        text(middle, 500, "swap: preemption by copying", "small soft")]


def draw():
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        "<!-- Drawn by docs/img/concepts.py; do not edit. -->",
        "<title>A request, its logical pages, pages and slots; the memory tiers</title>",
        f"<style>{STYLE}</style>",
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0,0L8,4L0,8z"/></marker></defs>',
        f'<rect class="paper" width="{WIDTH}" height="{HEIGHT}" rx="6"/>',
        *draw_request(), *draw_table(), *draw_pool(), *draw_page(), *draw_tiers(), "</svg>"]) + "\n"


if __name__ == "__main__":
    with open(os.path.join(HERE, "concepts.svg"), "w", encoding="utf-8") as file:
        file.write(draw())
