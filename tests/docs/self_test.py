#!/usr/bin/env python3
"""The documentation tests find what they are for: each planted error below is reported, and a right page is not.

Usage: self_test.py KVTWIN
"""

import pathlib
import sys
import tempfile
import unittest

import check_links
import markdown
import run_commands

KVTWIN = None

GOOD = """# A page
<!-- test: exit 2 -->
```console
$ kvtwin run no_such_scenario
```
```console
$ printf 'a 1\\nb\\nc\\n(ran in 0.31 s)\\n'
a ...
...
c
(ran in 9.9 s)
$ printf 'one \\
> more line\\n'
...
```
<!-- test: skip (needs a GPU) -->
```sh
false
```
<!-- test: slow -->
```sh
false
```
```cpp
not a command
```
"""


class Commands(unittest.TestCase):
    def run_page(self, text, slow=False):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "page.md").write_text(text)
            return run_commands.run_page(root / "page.md", KVTWIN, root, slow)

    def test_a_right_page_passes(self):
        ran, errors = self.run_page(GOOD)
        self.assertEqual(errors, [])
        self.assertEqual(ran, 3)

    def test_slow_blocks_run_when_asked(self):
        _, errors = self.run_page(GOOD, slow=True)
        self.assertEqual(len(errors), 1)

    def test_planted_errors_are_found(self):
        for name, text, said in [
                ("another status", "```sh\nfalse\n```\n", "ended with status 1"),
                ("no error where one is expected", "<!-- test: exit 2 -->\n```sh\ntrue\n```\n", "status 0 where 2"),
                ("another output", "```console\n$ echo a\nb\n```\n", "does not print"),
                ("a line is missing", "```console\n$ echo a\na\nb\n```\n", "does not print"),
                ("output that the page lacks", "```console\n$ printf 'a\\nb\\n'\na\n```\n", "nothing more"),
                ("lines in another order", "```console\n$ printf 'a\\nb\\n'\n...\nb\na\n```\n", "does not print"),
                ("the first command of two fails", "```console\n$ false\n$ true\n```\n", "ended with status 1"),
                ("a README's block", "```\n$ echo a\nb\n```\n", "does not print"),
                ("outside of the scratch copy", "```sh\ntest -e README.md\n```\n", "ended with status 1")]:
            with self.subTest(name):
                _, errors = self.run_page(text)
                self.assertEqual(len(errors), 1, errors)
                self.assertIn(said, errors[0])

    def test_marks_are_known_words(self):
        self.assertEqual(markdown.parse_mark("skip (why)"), {"skip": "why"})
        for wrong in ["skip", "exit", "exit two", "fast"]:
            with self.assertRaises(ValueError):
                markdown.parse_mark(wrong)
        with self.assertRaises(ValueError):
            markdown.fences("```sh\ntrue\n")


class Links(unittest.TestCase):
    def errors_of(self, text):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "other.md").write_text("# One, two `three`\n## Twice\n## Twice\n<a id=\"written\"></a>\n")
            (root / "page.md").write_text(text)
            return check_links.errors_of(root / "page.md")

    def test_right_links_pass(self):
        self.assertEqual(self.errors_of("# Here\n[a](other.md#one-two-three) [b](other.md#twice-1) [c](#here)\n"
                                        "![d](other.md#written) [e](https://example.org/x) `[f](nowhere.md)`\n"
                                        "```\n[g](nowhere.md)\n```\n"), [])

    def test_planted_errors_are_found(self):
        for text in ["[a](nowhere.md)", "[a](other.md#four)", "[a](#elsewhere)", "![a](img/none.svg)",
                     "[a](other.md#twice-2)", "[`code` [in] it](nowhere.md)"]:
            with self.subTest(text):
                self.assertEqual(len(self.errors_of(text + "\n")), 1)


if __name__ == "__main__":
    KVTWIN = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main()
