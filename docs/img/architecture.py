#!/usr/bin/env python3
"""Draws docs/img/architecture.svg: the parts of kvtwin and what passes between them.

  docs/img/architecture.py        writes the picture next to this script
"""

import os

HERE = os.path.dirname(os.path.abspath(__file__))
WIDTH, HEIGHT = 1080, 610

STYLE = """
  .paper { fill: #ffffff } text { fill: #24292f; font: 13px system-ui, "DejaVu Sans", sans-serif }
  .title { font-weight: 600; font-size: 14px } .small { font-size: 11.5px } .soft { fill: #57606a }
  .folder { font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: 11px; fill: #57606a }
  .box { fill: #f6f8fa; stroke: #8c959f } .part { fill: #ffffff; stroke: #8c959f }
  .core { fill: #ddf4ff; stroke: #0969da } .backend { fill: #fff1e5; stroke: #bc4c00 } .output { fill: #dafbe1; stroke: #1a7f37 }
  .arrow { fill: none; stroke: #57606a; stroke-width: 1.4; marker-end: url(#head) } #head path { fill: #57606a }
  .border { stroke: #57606a; stroke-width: 2; stroke-dasharray: 7 5 }
  @media (prefers-color-scheme: dark) {
    .paper { fill: #0d1117 } text { fill: #e6edf3 } .soft, .folder { fill: #9ea7b3 }
    .box { fill: #161b22; stroke: #6e7681 } .part { fill: #0d1117; stroke: #6e7681 }
    .core { fill: #0c2d4f; stroke: #4493f8 } .backend { fill: #3d2100; stroke: #db6d28 } .output { fill: #0f3320; stroke: #3fb950 }
    .arrow { stroke: #9ea7b3 } #head path { fill: #9ea7b3 } .border { stroke: #9ea7b3 }
  }
"""


def text(x, y, content, kind="", anchor="middle"):
    return f'<text class="{kind}" x="{x}" y="{y}" text-anchor="{anchor}">{content}</text>'


def box(kind, x, y, width, height, title, lines=(), folder=""):
    """A box with a title, lines below it and a folder name at its lower edge, all centred."""
    middle = x + width / 2
    out = [f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="6"/>',
           text(middle, y + 20, title, "title")]
    out += [text(middle, y + 39 + 16 * index, line, "small") for index, line in enumerate(lines)]
    if folder:
        out.append(text(middle, y + height - 9, folder, "folder"))
    return out


def arrow(path):
    return [f'<path class="arrow" d="{path}"/>']


def draw_inputs():
    """The left column."""
    return [*box("box", 20, 30, 190, 92, "traces", ["agent sessions, chat logs,", "synthesised load"], "traces"),
            *arrow("M210,76H316"), text(263, 68, "sessions", "small soft"),
            *box("box", 20, 180, 190, 92, "scenario", ["model, GPUs, limits,", "one policy per axis"], "scenarios"),
            *arrow("M210,226H270"),
            *box("box", 20, 440, 190, 110, "costs and memory",
                 ["measured kernel tables,", "roofline where none are,", "LLMs, GPUs, nodes"], "models"),
            *arrow("M210,495H270"), text(238, 487, "prices", "small soft")]


def draw_core():
    out = box("box", 320, 30, 440, 92, "client",
              ["replays sessions: tools, think times, sub-agents, arrivals"], "traces/replay")
    out += [*arrow("M450,122V172"), text(440, 151, "requests, hints", "small soft", "end"),
            *arrow("M630,174V126"), text(640, 151, "tokens, finished requests", "small soft", "start"),
            '<rect class="core" x="274" y="176" width="532" height="160" rx="8"/>',
            text(540, 197, "policy core: takes every decision, once", "title"),
            text(540, 214, "integers only: no clock, no float, no random number, no thread", "small soft")]
    parts = [(106, "router", ["which engine", "takes a request"], "engine/router"),
             (126, "scheduler", ["admission, batches,", "preemption, copies"], "engine/scheduler"),
             (126, "KV managers", ["pages, prefix cache,", "GPU, host, disk"], "engine/kv"),
             (126, "methods", ["drop, quantise,", "retrieve entries"], "engine/methods")]
    x = 284
    for width, title, lines, folder in parts:
        out += box("part", x, 226, width, 98, title, lines, folder)
        x += width + 9
    return out


def draw_backends():
    out = ['<path class="border" d="M274,394H806"/>',
           *arrow("M450,336V424"), text(440, 356, "commands: run a step,", "small soft", "end"), text(440, 372, "copy pages", "small soft", "end"),
           *arrow("M630,426V340"), text(640, 356, "events: step ended,", "small soft", "start"), text(640, 372, "copy ended, outcomes", "small soft", "start"),
           text(540, 387, "backend interface", "small"), text(540, 411, "engine/runtime", "folder")]
    backends = [("simulated", ["GPUs, PCIe, links", "in SimGrid;", "priced steps"], "sim"),
                ("cpu", ["real attention,", "fp32: the", "definition"], "engine/cpu"),
                ("cuda", ["real attention,", "bf16 and packed", "formats, graphs"], "engine/cuda"),
                ("recorded", ["answers from the", "log of a run", "(replay)"], "engine/recorder")]
    for index, (title, lines, folder) in enumerate(backends):
        out += box("backend", 274 + 135 * index, 430, 127, 120, title, lines, folder)
    return out


def draw_outputs():
    """The right column."""
    return [*arrow("M806,226H868"), text(837, 218, "observes", "small soft"),
            *box("output", 872, 180, 188, 92, "metrics, recorder",
                 ["latency to the nanosecond,", "log, digest of decisions"], "engine/metrics, recorder"),
            *arrow("M966,272V306"),
            *box("output", 872, 310, 188, 76, "run folder", ["requests.csv, run.binpb,", "log.binpb"]),
            *arrow("M966,386V426"),
            *box("output", 872, 430, 188, 120, "answers",
                 ["report page, sweep, plan;", "replay and validate;", "compare with a server"], "reports, scenarios")]


def draw():
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        "<!-- Drawn by docs/img/architecture.py; do not edit. -->",
        "<title>Architecture: one policy core, one backend interface, four backends</title>",
        f"<style>{STYLE}</style>",
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0,0L8,4L0,8z"/></marker></defs>',
        f'<rect class="paper" width="{WIDTH}" height="{HEIGHT}" rx="6"/>',
        *draw_inputs(), *draw_core(), *draw_backends(), *draw_outputs(),
        text(540, 588, "The simulator prices the operations of a step; the engines compute them. The policy core cannot tell"
             " which backend it runs on.", "small soft"),
        "</svg>"]) + "\n"


if __name__ == "__main__":
    with open(os.path.join(HERE, "architecture.svg"), "w", encoding="utf-8") as file:
        file.write(draw())
