#!/usr/bin/env python3
"""kvtwin trace: tiny files in every format, and hostile files."""

import os

from program import KVTWIN, SOURCE, CommandLine, main

PEAK_MAX = 500_000_000
SAMPLE = SOURCE / "traces/data/coding_agents_small.kvtrace"
ROWS = ('{"timestamp": 0, "session_id": "a", "input_length": 513, "output_length": 7, "hash_ids": [4, 5]}\n'
        '{"delay": 250, "session_id": "a", "input_length": 1024, "output_length": 1, "hash_ids": [4, 6]}\n')
FORMATS = {"weka": ".json", "mooncake": ".jsonl", "agentic_mooncake": ".jsonl", "azure": ".csv",
           "llmservingsim": ".jsonl", "claude-code": ".jsonl", "tau-bench": ".json", "applied-compute": ".jsonl"}

# AddressSanitizer retains 256 MB of freed memory in addition to its shadow, so peaks do not measure the program.
with open(KVTWIN, "rb") as program:
    MEASURES_MEMORY = b"__asan_init" not in program.read()


def foreign(seed):
    """The hand-written files of the formats are the fuzzer's seeds, after its two bytes of options."""
    return (SOURCE / "tests/fuzz/import_formats_fuzz" / seed).read_bytes()[2:]


class Trace(CommandLine):
    def trace(self, *words, **how):
        return self.kvtwin("trace", *words, **how)

    def refused_in_a_line(self, path, *words):
        outcome = self.trace(*words, status=2)
        self.assertEqual(outcome.err.count("\n"), 1, outcome.err)
        self.assertIn(str(path), outcome.err)
        self.assertEqual(outcome.out, "")
        if MEASURES_MEMORY:
            self.assertLess(outcome.peak_bytes, PEAK_MAX)
        return outcome

    def test_import_inspect_cut_export_and_import_again(self):
        self.write("rows.jsonl", ROWS)
        imported = self.trace("import", "auto", "rows.jsonl", "--out=a.trace")
        self.assertEqual(imported.out,
                         "a.trace: 1 session, 2 requests, 0 tool calls, 1537 prompt tokens, 8 output tokens\n")
        self.assertEqual(imported.err, "")
        self.assertIn("requests", self.trace("inspect", "a.trace").out)
        self.assertTrue(self.trace("inspect", "a.trace", "--format=json").out.startswith("{"))
        self.trace("export", "mooncake", "a.trace", "--out=back.jsonl")
        self.assertEqual(self.read("back.jsonl"), ROWS)
        headed = self.trace("cut", "a.trace", "--requests=1", "--out=cut.trace")
        self.assertEqual(headed.out,
                         "cut.trace: 1 session, 1 request, 0 tool calls, 513 prompt tokens, 7 output tokens\n")
        self.trace("export", "mooncake", "cut.trace", "--out=head.jsonl")
        self.assertNotIn("1024", self.read("head.jsonl"))

    def test_the_shipped_trace_is_inspected_and_cut_to_a_window(self):
        self.assertEqual(self.trace("inspect", SAMPLE).err, "")
        headed = self.trace("cut", SAMPLE, "--window=32768", "--sessions=5", "--out=cut.trace")
        self.assertTrue(headed.out.startswith("cut.trace: 5 sessions, "))

    def test_traces_that_mooncake_rows_cannot_represent_are_not_exported(self):
        self.trace("synth", "coding-agent-like", "--sessions=2", "--set=share_groups=0",
                   "--set=subagents_per_mille=1000", "--out=own.trace")
        for trace, message in ((SAMPLE, "some block ids hold in the data set and some in a session"),
                               ("own.trace", " branches; ")):
            outcome = self.refused_in_a_line("m.jsonl", "export", "mooncake", trace, "--out=m.jsonl")
            self.assertIn(message, outcome.err)
            self.assertEqual([name for name in os.listdir() if name.startswith("m.jsonl")], [])

    def test_every_format_is_guessed_from_its_content_alone_in_a_directory_and_in_an_archive(self):
        for name, ending in FORMATS.items():
            with self.subTest(name):
                content = foreign(name.replace("-", "_"))
                self.write(name + ending, content)
                self.trace("import", "auto", name + ending, "--out=guessed")
                self.trace("import", name, name + ending, "--out=named")
                self.assertEqual(self.read("guessed"), self.read("named"))
                # Next to it are files of no format.
                directory = f"{name}_dir"
                self.write(f"{directory}/README.md", '"hash_ids"')
                self.write(f"{directory}/0.csv", "a,b\n1,2\n")
                self.write(f"{directory}/x{ending}", content)
                if name in ("weka", "claude-code", "tau-bench"):
                    self.trace("inspect", directory)
                else:
                    refused = self.refused_in_a_line(directory, "inspect", directory)
                    self.assertIn(f"x{ending} is of format {name}", refused.err)
        self.write("a.tar", foreign("guessed_archive"))
        self.assertIn("tool schemas among them", self.trace("inspect", "a.tar").err)

    def test_synth_same_arguments_same_bytes_and_the_shipped_trace_is_one_such_output(self):
        made = self.trace("synth", "coding-agent-like", "--sessions=24", "--seed=1", "--set=requests_max=28",
                          "--set=window_tokens=65536", "--set=share_groups=2", "--set=subagents_per_mille=25",
                          "--set=rate_per_hour=240", "--out=a.trace")
        self.assertIn(": 24 sessions, 617 requests, 569 tool calls, ", made.out)
        self.assertTrue((self.folder / "a.trace").read_bytes() == SAMPLE.read_bytes())
        for seed in (1, 2):
            self.trace("synth", "bcp-like", "--sessions=3", f"--seed={seed}", f"--out={seed}")
        self.assertNotEqual(self.read("1"), self.read("2"))
        self.trace("inspect", "2")

    def test_synth_list_describes_every_recipe_and_parameter_and_help_opens_with_an_example(self):
        described = self.trace("synth", "--list").out
        for word in ("coding-agent-like:", "reasoning:", "share_groups", "window_tokens"):
            self.assertIn(word, described)
        shown = self.trace("synth", "--help").out
        self.assertTrue(shown.startswith("Draws a trace from a recipe"))
        self.assertIn("\n  kvtwin trace synth coding-agent-like", shown)
        self.assertIn("\n  --sessions=N          how many; default: 100\n", shown)

    def test_a_truncated_or_garbled_trace_ends_with_one_message(self):
        good = SAMPLE.read_bytes()
        for keep in (1, 100, len(good) // 2, len(good) - 1):
            with self.subTest(keep):
                self.write("cut", good[:keep])
                self.refused_in_a_line("cut", "inspect", "cut", "--from=kvtwin")
        third = len(good) // 3
        self.write("garbled", good[:third] + b"\xff" * 64 + good[third + 64:])
        self.refused_in_a_line("garbled", "inspect", "garbled")
        self.write("empty", "")
        self.refused_in_a_line("empty", "inspect", "empty")

    def test_a_gigabyte_of_zeros_is_refused_in_every_format_without_being_read_into_memory(self):
        os.mkdir("many")
        for name in ("zeros", "zeros.tar", "zeros.zip", "zeros.tar.xz", "many/trace.json"):
            self.write(name, "")
            os.truncate(name, 1 << 30)
        cases = [("zeros", form) for form in ("auto", "kvtwin", "mooncake-delta", *FORMATS)]
        cases += [(name, "auto") for name in ("zeros.tar", "zeros.zip", "zeros.tar.xz")]
        for name, form in cases:
            with self.subTest(name, format=form):
                self.refused_in_a_line(name, "import", form, name, "--out=x")
        for form in ("auto", "weka", "tau-bench"):
            with self.subTest("many", format=form):
                self.refused_in_a_line("many", "inspect", "many", f"--from={form}")


main()
