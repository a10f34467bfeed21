"""What the tests of the Python module share."""

import importlib.util
import os
import subprocess
import sys
import unittest

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.environ["KVTWIN_BUILD"]
TOOL = os.path.join(BUILD, "bin", "kvtwin")
SMALL = "coding_agents_small"


def has(package):
    return importlib.util.find_spec(package) is not None


def skip_without(*packages):
    """Ends the test, as skipped, if Debian's python3-NAME is missing."""
    missing = [name for name in packages if not has(name)]
    if missing:
        print(f"skipped: there is no {', '.join(missing)} (./dev test --python installs it)")
        sys.exit(77)


def tool(*words, cwd=None, status=0):
    """The output and the messages of the tool."""
    ran = subprocess.run([TOOL, *words], cwd=cwd, capture_output=True, text=True, check=False)
    if ran.returncode != status:
        raise AssertionError(f"kvtwin {' '.join(words)} ended with {ran.returncode}: {ran.stderr}")
    return ran.stdout, ran.stderr


def files_of(folder):
    """Contents by path below the folder."""
    out = {}
    for base, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(base, name)
            with open(path, "rb") as file:
                out[os.path.relpath(path, folder)] = file.read()
    return out


def main():
    unittest.main(verbosity=2)
