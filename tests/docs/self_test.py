#!/usr/bin/env python3
"""Tests of the documentation tests: each kind of planted error is found, and right pages pass."""

import os
import sys
import tempfile
import unittest

import check_links
import page_text
import repository
import run_commands

FAKE_TOOL = """#!/bin/sh
case $1 in
  run) echo "first: 0.5 requests/s (simulated 3.0 s in $$.25 s)"; echo; echo "  ttft 1.5"; echo "  tpot 2.5"; echo "last" ;;
  warn) echo "to stdout"; echo "a warning" >&2; echo "to stdout again" ;;
  fail) echo "x: is wrong; use y" >&2; exit 2 ;;
  env) env ;;
  models) cat "$(dirname "$0")/../share/kvtwin/models/one" ;;
esac
"""


class Repository(unittest.TestCase):
    """A repository in a temporary folder."""

    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.addCleanup(self.temporary.cleanup)
        self.root = os.path.join(self.temporary.name, "repository")
        self.tool = os.path.join(self.temporary.name, "tool")
        self.write(self.tool, FAKE_TOOL)
        os.chmod(self.tool, 0o755)
        for path in ("models/one", "scenarios/one", "traces/one"):
            self.write(path, path + "\n")

    def write(self, path, text):
        path = os.path.join(self.root, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)

    def run_page(self, text, slow=False):
        """Runs a page and returns (exit status, report)."""
        self.write("manual/page.md", text)
        _, errors = run_commands.run_page("manual/page.md", self.tool, self.root, slow)
        return (1 if errors else 0), "\n".join(errors)

    def expect_pass(self, text, slow=False):
        status, report = self.run_page(text, slow)
        self.assertEqual(status, 0, report)

    def expect_failure(self, text, message, slow=False):
        status, report = self.run_page(text, slow)
        self.assertEqual(status, 1, report)
        self.assertIn(message, report)


class LinkTest(Repository):
    def problems(self, text, path="manual/page.md"):
        self.write(path, text)
        checker = check_links.Links(repository.files(self.root), lambda page: repository.read(self.root, page))
        return checker.errors_of(path)

    def test_links_that_resolve(self):
        self.write("manual/other.md", "# Other\n\n## Two words\n")
        self.write("engine/README.md", "# Engine\n")
        self.write("engine/file.cc", "one\ntwo\n")
        self.assertEqual(self.problems(
            "# A title\n[a](other.md) [b](other.md#two-words) [c](#a-title) [d](../engine/README.md#engine)\n"
            "[e](../engine) [f](../engine/) [g](../engine/#engine) [h](https://example.org/none.md) [i](mailto:a@b.c)\n"
            "[j](../engine/file.cc#L2) ![k](other.md 'title') [l]: none\n\n[ref]: other.md#other\n"
            "`[code](none.md)` <a href=\"other.md\">m</a>\n<!-- [comment](none.md) -->\n\n```\n[fence](none.md)\n```\n"), [])

    def test_planted_broken_links(self):
        self.write("manual/other.md", "# Other\n")
        self.write("engine/file.cc", "one\ntwo\n")
        for target, problem in {
                "none.md": "manual/none.md does not exist",
                "other.md#none": "manual/other.md has no anchor #none",
                "Other.md": "manual/Other.md does not exist",
                "#none": "manual/page.md has no anchor #none",
                "/manual/other.md": "is absolute",
                "../../other.md": "leaves the repository",
                "../engine/file.cc#L3": "engine/file.cc has 2 lines",
                "../engine/file.cc#two": "is no line of a file",
                "../engine#two": "has no README.md",
        }.items():
            with self.subTest(target):
                for text in (f"[x]({target})\n", f"![x]({target})\n", f"[x]: {target}\n", f'<a href="{target}">x</a>\n'):
                    found = self.problems("\n" + text)
                    self.assertEqual(len(found), 1, text)
                    self.assertTrue(found[0].startswith(f"manual/page.md:2: link to {target}: "), found)
                    self.assertIn(problem, found[0])

    def test_build_outputs_are_no_targets(self):
        self.write("build/x.md", "# X\n")
        self.assertEqual(len(self.problems("[x](../build/x.md)\n")), 1)

    def test_anchors_of_github(self):
        for heading, anchor in {
                "Two words": "two-words",
                "The first part: why?": "the-first-part-why",
                "`kvtwin run` and `--set=X`": "kvtwin-run-and---setx",
                "A [link](x.md) here": "a-link-here",
                "Time -- and space": "time----and-space",
                "snake_case, _emphasis_ and **bold**": "snake_case-emphasis-and-bold",
                "Größe ≤ 3": "größe--3",
                "a &amp; b": "a--b",
                "1.2 Numbers ##": "12-numbers",
        }.items():
            self.assertIn(anchor, page_text.parse(f"## {heading}\n").anchors)
        self.assertEqual(page_text.parse("# A\n# A\n# A\n").anchors, {"a", "a-1", "a-2"})
        self.assertEqual(page_text.parse('<a id="x"></a>\n\nTitle\n=====\n').anchors, {"x", "title"})
        self.assertEqual(page_text.parse("```\n# no heading\n```\n    # nor this\n").anchors, set())


class CommandTest(Repository):
    def test_pages_that_hold(self):
        self.expect_pass("```console\n$ kvtwin run\nfirst: 0.5 requests/s (simulated 3.0 s in 0.07 s)\n\n  ttft 1.5\n"
                         "  tpot 2.5\nlast\n```\n")
        self.expect_pass("```console\n$ kvtwin run\nfirst...\n...\n  tpot 2.5\n...\n```\n")
        self.expect_pass("```console\n$ kvtwin run\n...\nlast\n$ echo a \\\n>   b\na b\n```\n")
        self.expect_pass("```\n$ kvtwin run\n...\n  t... 1.5\n...\n```\n")
        self.expect_pass("```console\n$ kvtwin run\n$ kvtwin warn\nto stdout\nto stdout again\n$ kvtwin warn\n"
                         "to stdout\nto stdout again\na warning\n```\n")
        self.expect_pass("```\nnot a command\n```\n```json\n{}\n```\n")
        self.expect_pass("- item\n\n  ```console\n  $ printf ' a\\n'\n   a\n  ```\n")

    def test_planted_wrong_output(self):
        self.expect_failure("```console\n$ kvtwin run\nfirst...\n\n  ttft 1.6\n...\n```\n", "expected:   ttft 1.6")
        self.expect_failure("```console\n$ kvtwin run\n...\n  ttft 1.6\n...\n```\n", "the closest line is:\n      ttft 1.5")
        self.expect_failure("```console\n$ kvtwin run\n...\n  tpot 2.5\n  ttft 1.5\n...\n```\n", "do not follow")
        self.expect_failure("```console\n$ kvtwin run\n...\n  tpot 2.5\n```\n", "does not end with")
        self.expect_failure("```console\n$ kvtwin run\nfirst...\n```\n", "expected: the end of the output")
        self.expect_failure("```console\n$ kvtwin models\nmodels/one\nmore\n```\n", "the output ends there")
        self.expect_failure("```console\n$ kvtwin run\nfirst: 0.6 requests/s (simulated 3.0 s in 0.07 s)\n...\n```\n",
                            "manual/page.md:2: `kvtwin run`")
        self.expect_failure("```\n$ kvtwin models\nmodels/two\n```\n", "models/two")

    def test_planted_wrong_status(self):
        self.expect_failure("```console\n$ kvtwin fail\nx: is wrong; use y\n```\n", "exit status 2, expected 0")
        self.expect_failure("```sh\nkvtwin fail\necho after\n```\n", "exit status 2, expected 0")
        self.expect_failure("<!-- test: exit 1 -->\n```sh\nkvtwin fail\n```\n", "exit status 2, expected 1")
        self.expect_failure("<!-- test: exit 1 -->\n```sh\ntrue\n```\n", "exit status 0, expected 1")
        self.expect_failure("<!-- test: exit 2 -->\n```console\n$ kvtwin fail\n...\n$ kvtwin fail\n```\n", ":3: `kvtwin fail`")
        self.expect_pass("<!-- test: exit 2 -->\n```console\n$ true\n$ kvtwin fail\nx: is wrong; use y\n```\n")
        self.expect_pass("```sh\nif ! kvtwin fail; then echo \"it's refused\"; fi\n```\n")

    def test_skipped_and_slow_blocks(self):
        self.expect_pass("<!-- test: skip (needs a GPU) -->\n```sh\nfalse\n```\n")
        slow = "```sh\necho a > first\n```\n\n<!-- test: slow -->\n```sh\nfalse < first\n```\n"
        self.expect_pass(slow)
        self.expect_failure(slow, "exit status 1", slow=True)

    def test_malformed_pages(self):
        self.expect_failure("<!-- test: skip -->\n```sh\nfalse\n```\n", 'manual/page.md:1: unknown "skip"')
        self.expect_failure("<!-- test: exit 1 -->\ntext\n```sh\nfalse\n```\n", "no fence follows")
        self.expect_failure("```console\nno command\n```\n", "output before the first")
        self.expect_failure("```sh\n./dev test\n```\n", "`./dev test` is not run by this test: mark the block skip")
        self.expect_failure("<!-- test: slow -->\n```json\n{}\n```\n", "neither console nor sh")

    def test_one_scratch_copy_for_a_page(self):
        self.write("kept", "as it was\n")
        self.expect_pass("```sh\ncd models\nexport NAME='two words'\necho changed > ../kept\nmkdir ../out\n```\n"
                         "```console\n$ echo $NAME; cat one ../kept; ls ..\ntwo words\nmodels/one\nchanged\n...\nout\n...\n```\n")
        self.assertEqual(repository.read(self.root, "kept"), "as it was\n")
        self.expect_pass("<!-- test: file my/new.txt -->\n```text\none\n\ntwo\n```\n```console\n$ cat my/new.txt\none\n\ntwo\n```\n")

    def test_environment(self):
        os.environ["KVTWIN_MODELS"] = "/elsewhere"
        self.addCleanup(os.environ.pop, "KVTWIN_MODELS")
        self.expect_pass("```sh\ntest -z \"$KVTWIN_MODELS\" -a -d \"$HOME\" -a -x build/dev/bin/kvtwin\n"
                         "case $HOME in $PWD/*|/root) exit 1 ;; esac\n```\n"
                         "```console\n$ command -v kvtwin\n.../kvtwin/build/dev/bin/kvtwin\n$ kvtwin models\nmodels/one\n```\n")

    def test_dev_prints_its_answer_on_stdout(self):
        self.write("dev", "#!/bin/sh\necho \"no build: $KVTWIN_NO_BUILD\"\necho 'installing things' >&2\n")
        os.chmod(os.path.join(self.root, "dev"), 0o755)
        self.expect_pass("```console\n$ ./dev run   # installs and builds\nno build: 1\n```\n")

    def test_a_command_that_hangs(self):
        self.write("manual/page.md", "")
        scratch_folder = os.path.join(self.temporary.name, "scratch")
        os.mkdir(scratch_folder)
        scratch = run_commands.Scratch(scratch_folder, self.root, repository.files(self.root), self.tool)
        status, output, _ = scratch.run("echo begun; sleep 30", False, 1)
        self.assertEqual((status, output), (-1, "begun\n\n(no end within 1 s)"))


class MismatchTest(unittest.TestCase):
    def test_wildcards(self):
        for expected, actual, holds in [
                ("a", "a", True), ("a", "b", False), ("a", "a\nb", False), ("a\nb", "a", False), ("a  ", "a", True),
                ("...", "", True), ("...", "a\nb", True), ("a\n...", "a", True), ("a\n...", "b", False),
                ("...\nb", "a\nb", True), ("...\nb", "b\na", False), ("...\na\n...", "b\na\nc", True),
                ("a\n...\na", "a", False), ("...\na\nb\n...", "a\na\nb", True), ("...\na\n...\na\n...", "a\nb", False),
                ("x=... y", "x=1 2 y", True), ("x=...", "x=", True), ("x=...", "y=", False), ("a.c", "abc", False),
                ("(simulated 1 s in 0.07 s)", "(simulated 1 s in 12.1 s)", True),
                ("(simulated 1 s in 0.07 s)", "(simulated 2 s in 0.07 s)", False),
                ("v version=0.1.0   out/run-0123456789abcdef", "v version=0.2.0   out/run-fedcba9876543210", True),
                ("decisions=0123", "decisions=3210", False),
                ("a\n\nb", "a\nb", False), ("a\n\n", "a", True),
        ]:
            with self.subTest(expected=expected, actual=actual):
                self.assertEqual(run_commands.mismatch(expected.split("\n"), actual.split("\n")) == "", holds)


if __name__ == "__main__":
    unittest.main()
