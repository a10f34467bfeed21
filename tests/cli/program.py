"""The built kvtwin, for tests of the command line: each test runs in an empty folder of its own.

Messages of errors are tested by bad_inputs.txt; a test here is about what a command does. A test file is a program
whose first argument is kvtwin, and whose last line is main().
"""

import csv
import io
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
SHIPPED = SOURCE / "scenarios/shipped"
METHOD_DIR = SOURCE / "scenarios/methods"
MODELS = SOURCE / "models"
KVTWIN = os.path.abspath(sys.argv[1])


def rows_of(text):
    """Rows of a CSV as dictionaries."""
    return list(csv.DictReader(io.StringIO(text)))


class Outcome:
    """An ended process. `peak_bytes`: the memory that was resident at most."""

    def __init__(self, status, out, err, peak_bytes=0):
        self.status, self.out, self.err, self.peak_bytes = status, out, err, peak_bytes

    def after(self, name):
        """The word after `name` in the output."""
        return self.out.partition(name)[2].lstrip(" ").split('"')[0].split()[0]

    @property
    def json(self):
        return json.loads(self.out)

    @property
    def lines(self):
        """The objects of JSON lines."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def rows(self):
        return rows_of(self.out)


class CommandLine(unittest.TestCase):
    maxDiff = 2000

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="kvtwin-test-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.folder)

    def kvtwin(self, *words, status=0, cwd=None):
        """Runs it and requires the exit status; None: any."""
        with open(self.folder / ".out", "w+b") as out, open(self.folder / ".err", "w+b") as err:
            process = subprocess.Popen([KVTWIN, *map(str, words)], stdout=out, stderr=err, cwd=cwd)
            _, code, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(code)
            out.seek(0), err.seek(0)
            outcome = Outcome(process.returncode, out.read().decode(errors="replace"),
                              err.read().decode(errors="replace"), usage.ru_maxrss << 10)
        return self.ended(outcome, status, words)

    def shell(self, words, status=0):
        """The same for a command line of the shell, in which words may be quoted and output redirected."""
        done = subprocess.run(f"'{KVTWIN}' {words}", shell=True, capture_output=True, timeout=120)
        return self.ended(Outcome(done.returncode, done.stdout.decode(errors="replace"),
                                  done.stderr.decode(errors="replace")), status, words)

    def ended(self, outcome, status, words):
        if status is not None and outcome.status != status:
            if "no simulated backend" in outcome.err:
                self.skipTest("this build has no simulator")
            self.fail(f"status {outcome.status} instead of {status}: {words}\n{outcome.err}{outcome.out[-2000:]}")
        return outcome

    def refused(self, message, *words, **how):
        outcome = self.kvtwin(*words, status=2, **how)
        self.assertIn(message, outcome.err)
        return outcome

    def write(self, name, content):
        """Writes a file, and the folders above it."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def read(self, name):
        return (self.folder / name).read_text(errors="surrogateescape")

    def check_same_files(self, one, other, *names):
        for name in names:
            self.assertTrue((self.folder / one / name).read_bytes() == (self.folder / other / name).read_bytes(),
                            f"{one}/{name} is not {other}/{name}")

    def check_same_decisions(self, one, other):
        self.assertEqual(one.after("decisions="), other.after("decisions="))

    def assertNear(self, one, other, relative):
        self.assertAlmostEqual(one, other, delta=relative * max(abs(one), abs(other)))

    def replay(self, folder):
        """A recorded run replays to its digest."""
        replayed = self.kvtwin("replay", folder)
        self.assertIn("same decisions", replayed.out)
        return replayed


def main():
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
