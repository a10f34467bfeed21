#!/usr/bin/env python3
"""Draws docs/img/predicted_vs_measured.svg: predicted against measured figures of the validation scenarios on two GPUs.

  docs/img/predicted_vs_measured.py               writes the picture next to this script
  docs/img/predicted_vs_measured.py --table       prints a table instead: median and worst difference by group
  docs/img/predicted_vs_measured.py --scenarios   prints each figure of each scenario

Input: tests/golden/{h200,h100}/validation.json, which `kvtwin validate --recorded --format=json` wrote. A scenario is dense if it
names neither scorer, retrieval nor precision.
"""

import json
import math
import os
import re
import statistics
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.normpath(os.path.join(HERE, "..", ".."))
GPUS = ["H200", "H100"]
PANELS = [("ttft mean", "TTFT, mean", "ms", 6), ("tpot mean", "TPOT, mean", "ms", 3),
          ("throughput", "throughput", "output tokens/s", 3)]
GROUPS = [("dense", "dense attention", 180), ("methods", "methods and formats", 220)]
WIDTH, HEIGHT = 1080, 560
PANEL, GAP, LEFT, TOP = 270, 82, 74, 78  # side of a square panel; space between panels; origin of the first
RESIDUAL_TOP, RESIDUAL = 392, 96  # the strips of differences under the panels
RESIDUAL_LIMIT = 15  # per cent
NAME_WIDTH, NAME_HEIGHT = 6.6, 11  # of a letter of a name, and of a line

STYLE = """
  .paper { fill: #ffffff } text { fill: #24292f; font: 13px system-ui, "DejaVu Sans", sans-serif }
  .title { font-size: 15px; font-weight: 600 } .small { font-size: 11.5px } .soft { fill: #57606a }
  .frame { fill: none; stroke: #8c959f } .grid { stroke: #d0d7de; stroke-width: 0.7 } .exact { stroke: #57606a; stroke-width: 1.2 }
  .band { fill: #8c959f; opacity: 0.28 }
  .dense { fill: #0072b2 } .methods { fill: #d55e00 }
  .point { stroke: #ffffff; stroke-width: 0.6; opacity: 0.92 }
  @media (prefers-color-scheme: dark) {
    .paper { fill: #0d1117 } text { fill: #e6edf3 } .soft { fill: #9ea7b3 }
    .frame { stroke: #6e7681 } .grid { stroke: #30363d } .exact { stroke: #9ea7b3 } .band { fill: #6e7681; opacity: 0.4 }
    .dense { fill: #56b4e9 } .methods { fill: #e69f00 } .point { stroke: #0d1117 }
  }
"""


def read_figures():
    """[(group, scenario and GPU, {figure: (predicted, measured)})]"""
    out = []
    for gpu in GPUS:
        with open(f"{ROOT}/tests/golden/{gpu.lower()}/validation.json", encoding="utf-8") as file:
            scenarios = json.load(file)["scenarios"]
        for one in scenarios:
            name = one["scenario"]
            with open(f"{ROOT}/scenarios/suites/validation/{name}.textproto", encoding="utf-8") as file:
                group = "methods" if re.search(r"scorer:|retrieval:|precision:", file.read()) else "dense"
            figures = {figure["name"]: (figure["simulated"], figure["real"]) for figure in one["figures"]}
            out.append((group, f"{name}, {gpu}", figures))
    return out


def percent(predicted, measured):
    return (predicted / measured - 1) * 100


def label(value):
    return f"{value:,.0f}" if value >= 10 else f"{value:g}"


def ticks(low, high):
    """1, 2 and 5 times powers of ten in [low, high]."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [step * 10.0 ** decade for decade in decades for step in (1, 2, 5) if low <= step * 10.0 ** decade <= high]


def point(group, x, y, title):
    shape = {"dense": f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.2"/>',
             "methods": f'<rect x="{x - 3.8:.1f}" y="{y - 3.8:.1f}" width="7.6" height="7.6"/>'}[group]
    return f'<g class="point {group}"><title>{title}</title>{shape}</g>'


class Panel:
    """One quantity: a log-log square above, the differences in per cent below, on the same horizontal axis."""

    def __init__(self, column, figure, title, unit, limit, suite):
        self.left = LEFT + column * (PANEL + GAP)
        self.title, self.unit, self.limit = title, unit, limit
        self.points = [(group, name, *figures[figure]) for group, name, figures in suite]
        values = [value for _, _, predicted, measured in self.points for value in (predicted, measured)]
        self.low, self.high = min(values) / 1.3, max(values) * 1.3

    def x(self, value):
        return self.left + PANEL * math.log(value / self.low) / math.log(self.high / self.low)

    def y(self, value):
        return TOP + PANEL - (self.x(value) - self.left)

    def residual_y(self, difference):
        return RESIDUAL_TOP + RESIDUAL / 2 * (1 - difference / RESIDUAL_LIMIT)

    def draw(self):
        out = [f'<text class="title" x="{self.left}" y="{TOP - 12}">{self.title}</text>',
               f'<text class="small soft" x="{self.left + PANEL}" y="{TOP - 12}" text-anchor="end">{self.unit}</text>']
        return out + self.draw_axes() + self.draw_points()

    def draw_axes(self):
        right, bottom, end = self.left + PANEL, TOP + PANEL, RESIDUAL_TOP + RESIDUAL
        out = []
        for value in ticks(self.low, self.high):
            x, y = self.x(value), self.y(value)
            out += [f'<path class="grid" d="M{x:.1f},{TOP}V{bottom}M{x:.1f},{RESIDUAL_TOP}V{end}M{self.left},{y:.1f}H{right}"/>',
                    f'<text class="small soft" x="{self.left - 6}" y="{y + 4:.1f}" text-anchor="end">{label(value)}</text>',
                    f'<text class="small soft" x="{x:.1f}" y="{end + 15}" text-anchor="middle">{label(value)}</text>']
        for value in (-RESIDUAL_LIMIT, -5, 0, 5, RESIDUAL_LIMIT):
            y = self.residual_y(value)
            out += [f'<path class="{"grid" if value else "exact"}" d="M{self.left},{y:.1f}H{right}"/>',
                    f'<text class="small soft" x="{self.left - 6}" y="{y + 4:.1f}" text-anchor="end">'
                    f'{f"{value:+d} %" if value else "0"}</text>']
        shift = PANEL * math.log(1.05) / math.log(self.high / self.low)
        clip = f"panel{self.left}"
        out += [f'<clipPath id="{clip}"><rect x="{self.left}" y="{TOP}" width="{PANEL}" height="{PANEL}"/></clipPath>',
                f'<g clip-path="url(#{clip})"><path class="band" d="M{self.left},{bottom - shift:.1f}L{right},{TOP - shift:.1f}'
                f'V{TOP + shift:.1f}L{self.left},{bottom + shift:.1f}z"/><path class="exact" d="M{self.left},{bottom}L{right},{TOP}"/></g>',
                f'<rect class="band" x="{self.left}" y="{self.residual_y(5):.1f}" width="{PANEL}" height="{RESIDUAL * 5 / RESIDUAL_LIMIT:.1f}"/>',
                f'<rect class="frame" x="{self.left}" y="{TOP}" width="{PANEL}" height="{PANEL}"/>',
                f'<rect class="frame" x="{self.left}" y="{RESIDUAL_TOP}" width="{PANEL}" height="{RESIDUAL}"/>',
                f'<text class="small" x="{self.left + PANEL / 2}" y="{end + 33}" text-anchor="middle">measured</text>']
        return out

    def draw_points(self):
        out = []
        for group, name, predicted, measured in self.points:
            difference = percent(predicted, measured)
            title = f"{name}: predicted {predicted:.4g}, measured {measured:.4g} {self.unit}, {difference:+.1f} %"
            out += [point(group, self.x(measured), self.y(predicted), title),
                    point(group, self.x(measured), self.residual_y(difference), title)]
        beyond = sorted((self.x(measured), percent(predicted, measured), name)
                        for _, name, predicted, measured in self.points
                        if abs(percent(predicted, measured)) > self.limit)
        taken = [(self.x(measured) - 5, self.x(measured) + 5, self.residual_y(percent(predicted, measured)))
                 for *_, predicted, measured in self.points]  # (left, right, y) of points, and then of names
        for x, difference, name in beyond:
            out += self.draw_name(x, self.residual_y(difference), name, taken)
        return out

    def draw_name(self, x, y, name, taken):
        """The name on the line that covers the least, with a stroke to its point if that is another line."""
        is_left = x > self.left + PANEL * 0.5
        near, far = (x - 8, x - 8 - NAME_WIDTH * len(name)) if is_left else (x + 8, x + 8 + NAME_WIDTH * len(name))
        left, right = min(near, far), max(near, far)
        covered = lambda line: sum(left < other_right and other_left < right and abs(line - other) < NAME_HEIGHT
                                   for other_left, other_right, other in taken)
        lines = [y] + [line for line in range(RESIDUAL_TOP + 7, RESIDUAL_TOP + RESIDUAL - 4, 3)]
        at = min(lines, key=lambda line: (covered(line), abs(line - y)))
        taken.append((left, right, at))
        out = [f'<path class="exact" d="M{x:.1f},{y:.1f}L{near:.1f},{at:.1f}"/>'] if at != y else []
        return out + [f'<text class="small" x="{near:.1f}" y="{at + 4:.1f}" text-anchor="{"end" if is_left else "start"}">{name}</text>']


def legend(suite):
    out, x = [], LEFT
    for group, text, width in GROUPS:
        count = sum(one[0] == group for one in suite)
        out += [point(group, x + 5, 37, text), f'<text x="{x + 17}" y="41">{text} ({count})</text>']
        x += width
    out.append(f'<rect class="band" x="{x}" y="30" width="26" height="12"/><path class="exact" d="M{x},36h26"/>'
               f'<text x="{x + 34}" y="41">predicted = measured, ±5 %</text>')
    return out


def draw(suite):
    middle = TOP + PANEL / 2
    strip = RESIDUAL_TOP + RESIDUAL / 2
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
           "<!-- Drawn by docs/img/predicted_vs_measured.py; do not edit. -->",
           f"<title>Predicted against measured: {len(suite)} runs on an H200 and an H100</title>",
           f"<style>{STYLE}</style>", f'<rect class="paper" width="{WIDTH}" height="{HEIGHT}" rx="6"/>',
           *legend(suite),
           f'<text class="small" transform="translate(20,{middle}) rotate(-90)" text-anchor="middle">predicted</text>',
           f'<text class="small" transform="translate(20,{strip}) rotate(-90)" text-anchor="middle">difference</text>']
    for column, (figure, title, unit, limit) in enumerate(PANELS):
        out += Panel(column, figure, title, unit, limit, suite).draw()
    out.append(f'<text class="small soft" x="{LEFT}" y="{HEIGHT - 12}">One NVIDIA H200 and one H100, Llama-3.1-8B geometry, one'
               " real run each. Names: runs beyond the project's limit (TTFT 6 %, TPOT and throughput 3 %).</text>")
    return "\n".join(out + ["</svg>"]) + "\n"


def print_table(suite):
    """Over the scenarios of a group: median of the differences' sizes, and in brackets the worst difference."""
    names = ["ttft mean", "ttft p99", "tpot mean", "throughput"]
    print(f"{'':24}" + "".join(f"{name:>20}" for name in names))
    for group, title, _ in [*GROUPS, ("all", "all", 0)]:
        part = [figures for one, _, figures in suite if group in ("all", one)]
        row = []
        for name in names:
            differences = [percent(*figures[name]) for figures in part]
            row.append(f"{statistics.median(map(abs, differences)):.1f} % ({max(differences, key=abs):+.1f} %)")
        print(f"{f'{title} ({len(part)})':24}" + "".join(f"{value:>20}" for value in row))


def print_scenarios(suite):
    for figure, _, unit, _ in PANELS:
        for group, name, figures in suite:
            predicted, measured = figures[figure]
            print(f"{figure:11} {group:8} {name:20} predicted {predicted:10.4g}  measured {measured:10.4g} {unit}"
                  f"  difference {percent(predicted, measured):+6.1f} %")


def main():
    suite = read_figures()
    if sys.argv[1:] == ["--table"]:
        return print_table(suite)
    if sys.argv[1:] == ["--scenarios"]:
        return print_scenarios(suite)
    with open(os.path.join(HERE, "predicted_vs_measured.svg"), "w", encoding="utf-8") as file:
        file.write(draw(suite))


if __name__ == "__main__":
    main()
