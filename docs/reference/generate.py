#!/usr/bin/env python3
"""Writes the generated pages of docs/reference, or checks that they are up to date.

Usage: docs/reference/generate.py --kvtwin=FILE [--check]

scenario-fields.md, model-files.md, trace-schema.md and other-files.md come from the comments and fields of traces/proto/*.proto, the
scenarios' defaults from scenarios/load/defaults.txtpb, words.md and combinations.md from what the tool prints. Of metrics.md, which is
written by hand, --check compares the names with what the tool prints.
"""

import argparse
import dataclasses
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = ROOT / "docs/reference"
SCALARS = {"string", "bool", "double", "uint32", "uint64", "int32", "int64", "bytes", "fixed64", "float", "sint64", "sint32"}


@dataclasses.dataclass
class Field:
    name: str
    type: str
    repeated: bool
    comment: str


@dataclasses.dataclass
class Message:
    name: str
    comment: str
    fields: list


_FIELD = re.compile(r"(optional|repeated)?\s*([A-Za-z0-9_.]+)\s+(\w+)\s*=\s*\d+\s*(?:\[[^\]]*\])?\s*;")
_VALUE = re.compile(r"(\w+)\s*=\s*\d+\s*;")


class Protos:
    """Messages and enums of .proto files: a reader of exactly the syntax that these files use."""

    def __init__(self, names):
        self.messages, self.enums = {}, {}
        for name in names:
            self._read((ROOT / "traces/proto" / name).read_text())

    def _read(self, text):
        opened, before = [], []  # opened: messages around the line, the innermost last
        for line in text.split("\n"):
            code, _, comment = line.partition("//")
            code, comment = code.strip(), comment.strip()
            if not code:
                if comment.startswith("---"):
                    before = []
                elif "//" in line:
                    self._go_on(opened[-1] if opened else None, line, comment, before)
                else:
                    before = []
                continue
            begun = re.match(r"(message|enum)\s+(\w+)\s*\{(.*)", code)
            if begun:
                opened.append(self._begin(begun[1], begun[2], before, comment))
                code = begun[3]
                before, comment = [], ""
            elif re.match(r"oneof \w+ \{$", code):
                opened.append(opened[-1])  # its fields are those of the message around it
            if opened:
                self._fields(opened[-1], code, before, comment)
            if code:
                before = []
            if "}" in code and "{" not in code.split("}")[0]:
                opened.pop()

    def _begin(self, kind, name, before, comment):
        made = Message(name, " ".join(before + [comment]).strip(), [])
        (self.messages if kind == "message" else self.enums)[name] = made
        made.is_enum = kind == "enum"
        return made

    def _go_on(self, open_type, line, comment, before):
        # A comment far to the right, below the comment of a field, continues it.
        deep = len(line) - len(line.lstrip()) > 8
        if open_type is not None and deep and open_type.fields:
            open_type.fields[-1].comment += " " + comment
        else:
            before.append(comment)

    def _fields(self, message, code, before, comment):
        found = _VALUE.findall(code) if message.is_enum else _FIELD.findall(code)
        for index, one in enumerate(found):
            # Of several fields in a line, the comment is of the last one.
            said = " ".join(before + [comment]).strip() if index == len(found) - 1 else ""
            field = Field(one, "", False, said) if message.is_enum else Field(one[2], one[1], one[0] == "repeated", said)
            message.fields.append(field)


def defaults():
    """{path: value as written} of the scenario's defaults."""
    text = (ROOT / "scenarios/load/defaults.txtpb").read_text()
    out, path = {}, []
    for word in re.findall(r"(\w+)\s*\{|(\w+):\s*(\"[^\"]*\"|[^\s{}]+)|(\})", text):
        if word[0]:
            path.append(word[0])
        elif word[3]:
            path.pop()
        else:
            out[".".join(path + [word[1]])] = word[2]
    return out


def cell(text):
    return text.replace("|", "\\|").replace("<", "&lt;") or " "


def field_type(field):
    word = field.type.split(".")[-1]
    return ("list of " if field.repeated else "") + word


def header(title, about, command):
    return (f"# {title}\n\n<!-- Written by {command}; edit what it reads instead. -->\n\n{about}\n")


def scenario_page(protos):
    known = defaults()
    out = header("Scenario fields",
                 "A scenario is a textproto file with these fields. `--set=FIELD=VALUE` sets one on the command line, a sweep's\n"
                 "`--vary=FIELD=VALUES` varies it, in the dotted form of the first column.\n"
                 "Fields that are not given have the default; a preset (`limits.preset`) replaces some of them first.\n"
                 "`kvtwin run` writes all of them, resolved, into the result's `scenario.resolved.textproto`.\n"
                 "Units are in the names: `_tokens`, `_pages`, `_bytes`, `_ns`, `_s` (seconds), `_per_s`; a name without one is a\n"
                 "count, a ratio or a name.\n"
                 "A number may have another unit, in files, in `--set` and in `--vary`: `500GB`, `80GiB`, `5ms`, `2min`, `90%`,\n"
                 "`30/min`, `8k` (8,000), `8Ki` (8,192), `500e9`.\n"
                 "`kvtwin list fields` prints this page, and [words of other engines](words.md) names the field of each option of\n"
                 "vLLM, SGLang and TensorRT-LLM.",
                 "docs/reference/generate.py")
    waiting = [("", "Scenario")]
    seen = set()
    while waiting:
        path, name = waiting.pop(0)
        message = protos.messages[name]
        rows, groups = [], []
        for field in message.fields:
            full = f"{path}.{field.name}" if path else field.name
            kind = field.type.split(".")[-1]
            if kind in protos.messages:
                groups.append((full + ("[]" if field.repeated else ""), kind))
                rows.append((f"`{full}`", "group" if not field.repeated else "list of groups", "",
                             field.comment or f"see [below](#{anchor(full, field.repeated)})"))
            else:
                rows.append((f"`{full}`", field_type(field), known.get(full, ""), field.comment))
        title = path or "The top level"
        out += f"\n## {title}\n\n" + (message.comment + "\n\n" if message.comment else "")
        out += "| field | type | default | |\n|---|---|---|---|\n"
        for row in rows:
            value = f"`{row[2]}`" if row[2] else ""
            out += f"| {row[0]} | {row[1]} | {value} | {cell(row[3])} |\n"
        waiting = [one for one in groups if one not in seen] + waiting
        seen.update(groups)
    return out


def anchor(path, repeated):
    return re.sub(r"[^\w\- ]", "", (path + ("[]" if repeated else "")).lower())


def message_table(protos, message):
    out = f"\n## {message.name}\n\n" + (message.comment + "\n\n" if message.comment else "")
    if message.is_enum:
        out += "| value | |\n|---|---|\n"
        return out + "".join(f"| `{f.name}` | {cell(f.comment)} |\n" for f in message.fields)
    out += "| field | type | |\n|---|---|---|\n"
    for field in message.fields:
        kind = field.type.split(".")[-1]
        known = kind in protos.messages or kind in protos.enums
        text = field_type(field)
        if known:
            text = text.replace(kind, f"[{kind}](#{kind.lower()})")
        out += f"| `{field.name}` | {text} | {cell(field.comment)} |\n"
    return out


def schema_page(protos, title, about):
    out = header(title, about, "docs/reference/generate.py")
    for message in list(protos.messages.values()) + list(protos.enums.values()):
        out += message_table(protos, message)
    return out


def printed(kvtwin, *words):
    done = subprocess.run([kvtwin, *words], capture_output=True, text=True, check=False,
                          env={"LC_ALL": "C.UTF-8", "COLUMNS": "120", "PATH": "/usr/bin:/bin"})
    if done.returncode != 0:
        sys.exit(f"{' '.join(words)}: status {done.returncode}: {done.stderr}")
    return "\n".join(line.rstrip() for line in done.stdout.rstrip().split("\n"))


def words_page(kvtwin):
    out = header("Words of other engines",
                 "Options of vLLM, SGLang and TensorRT-LLM, and the field that stands for each. `kvtwin list words` prints this\n"
                 "table, and an error about a field or an option that is one of these words names ours.\n"
                 "`limits.preset=vllm_v1` sets vLLM's defaults.",
                 "docs/reference/generate.py")
    lines = printed(kvtwin, "list", "words").split("\n")
    starts = [lines[0].index(name) for name in ("word", "of ", "kvtwin's field", "note")] + [None]
    out += "\n| word | of | field | |\n|---|---|---|---|\n"
    for line in lines[1:]:
        word, engines, ours, note = (line[a:b].strip() for a, b in zip(starts, starts[1:]))
        out += f"| `{word}` | {engines} | {ours if ours == '-' else f'`{ours}`'} | {cell(note)} |\n"
    return out


def combinations_page(kvtwin):
    out = header("Combinations of policies",
                 "What `kvtwin list combinations` prints: the capability table of `engine/methods/combinations.h`, which every check\n"
                 "of a combination reads. What depends on numbers (page sizes, budgets, the model's shape) is checked apart.\n"
                 "A test composes every pair for the simulated and the cpu backend; what it says of cuda is not tested pair by pair.",
                 "docs/reference/generate.py")
    return out + "\n```text\n" + printed(kvtwin, "list", "combinations") + "\n```\n"


def metric_names(kvtwin):
    """Names that a run prints as JSON, and the columns of its tables."""
    names = []
    with tempfile.TemporaryDirectory() as folder:
        for words in (["coding_agents_small"], ["methods/freekv"], ["methods/snapkv"], ["methods/tangram"]):
            text = printed(kvtwin, "run", *words, "--format=json", "--quiet", f"--out={folder}/{len(names)}")
            names += [name for name in re.findall(r'^  "(\w+)":', text, re.M) if name not in names]
            for table in pathlib.Path(folder).rglob("*.csv"):
                names += [name for name in table.read_text().split("\n")[0].split(",") if name not in names]
    return names


def check_metrics(kvtwin):
    page = (HERE / "metrics.md").read_text()
    written = []
    for line in page.split("\n"):
        found = re.match(r"\| ((?:`\w+`(?:, )?)+) \|", line)
        if found:
            written += re.findall(r"`(\w+)`", found[1])
    names = set(written)
    for word in ("mean", "p50", "p90", "p95", "p99"):
        names |= {name.replace("_POINT_ms", f"_{word}_ms") for name in written if "_POINT_ms" in name}
    return [f"metrics.md lacks {name}, which kvtwin run prints" for name in metric_names(kvtwin) if name not in names]


def pages(kvtwin):
    scenario = Protos(["scenario.proto"])
    return {
        "scenario-fields.md": scenario_page(scenario),
        "trace-schema.md": schema_page(
            Protos(["agent_trace.proto"]), "Trace schema",
            "A `.kvtrace` file is a sequence of length-delimited records of these messages: a header, then tables of\n"
            "shared spans and sessions, then a footer. [Import a trace](../guides/import-a-trace.md) says how to make one,\n"
            "[trace formats](../design/trace-formats.md) what each source records. Times are int64 nanoseconds:\n"
            "`*_at_ns` since the trace's origin, other `*_ns` durations."),
        "model-files.md": schema_page(
            Protos(["model.proto"]), "Model, device, node and measured files",
            "Textproto files of `models/llm` (LlmSpec), `models/device` (DeviceSpec), `models/node` (NodeSpec) and\n"
            "`models/measured` (MeasuredDevice, written by `kvtwin calibrate`)."),
        "other-files.md": schema_page(
            Protos(["sweep.proto", "validation.proto", "profile.proto", "server_profile.proto"]), "Sweep, deviation and profile files",
            "Textproto files: a sweep (`kvtwin sweep FILE.sweep.textproto`), deviations that are known (KnownDeviations,\n"
            "`kvtwin validate --known=FILE`), and what `kvtwin calibrate policy` writes (RetentionProfile, RecallProfile,\n"
            "TagMap), which scenarios name in `policies.budget_options.profile`, `simulation.retrieval.profile` and\n"
            "`policies.precision_options.tag_map`. `kvtwin calibrate server` writes a ServerProfile, which scenarios name in\n"
            "`cost.profile`."),
        "words.md": words_page(kvtwin),
        "combinations.md": combinations_page(kvtwin),
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--kvtwin", required=True)
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    kvtwin = str(pathlib.Path(given.kvtwin).resolve())
    stale = []
    for name, text in pages(kvtwin).items():
        path = HERE / name
        if not given.check:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            stale.append(f"docs/reference/{name} is stale; run docs/reference/generate.py --kvtwin={given.kvtwin}")
    if given.check:
        stale += check_metrics(kvtwin)
    print("\n".join(stale))
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
