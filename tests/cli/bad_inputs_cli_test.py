#!/usr/bin/env python3
"""Bad input: each case of bad_inputs.txt is refused with exit status 2 and its message, which says where it is wrong,
what with the value, and what would be right. Nothing is written.
"""

import json

from program import SOURCE, CommandLine, main

RESULTS = ("m", "o", "p", "res", "w", "x", "x.part")


class BadInputs(CommandLine):
    def cases(self):
        """Writes the files, and returns pairs of a command and the parts of its message."""
        cases = []
        for line in (SOURCE / "tests/cli/bad_inputs.txt").read_text().splitlines():
            if line.startswith("file "):
                _, name, content = line.split(" ", 2)
                content = json.loads(content).encode()
                self.write(name, content.replace(b"{E9}", b"\xe9").replace(b"{8B}", b"\x8b"))
                continue
            line = line.replace("{folder}", str(self.folder)).replace("{source}", str(SOURCE))
            if line.startswith("$ "):
                cases.append((line[2:], []))
            elif line.startswith("  ") and cases:
                cases[-1][1].append(line[2:])
        return cases

    def test_every_case_is_refused_with_its_message(self):
        cases = self.cases()
        self.assertGreaterEqual(len(cases), 540)
        for words, parts in cases:
            with self.subTest(words):
                outcome = self.shell(words, status=2)
                self.assertTrue(parts)
                self.assertEqual([part for part in parts if part not in outcome.err], [], outcome.err)
                self.assertEqual(outcome.out, "")
                self.assertEqual([name for name in RESULTS if (self.folder / name).exists()], [])


main()
