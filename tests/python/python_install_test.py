"""`cmake --install` puts the module where Python finds it, and it finds the tool and its data there."""

import os
import subprocess
import sys
import tempfile
import unittest

import support

SCRIPT = """
import kvtwin, os
here = os.path.dirname(kvtwin.__file__)
print(here)
print(kvtwin.program())
print(kvtwin.run("coding_agents_small", set={"replay.sessions_max": 2}).digest)
swept = kvtwin.sweep("coding_agents_small", {"seed": [1]}, {"replay.sessions_max": 2}, out="swept")
print(swept.points[0]["state"])
"""


class Install(unittest.TestCase):
    def check(self, prefix, packages):
        with tempfile.TemporaryDirectory() as root:
            root = os.path.realpath(root)
            environment = {**os.environ, "DESTDIR": root}
            subprocess.run(["cmake", "--install", support.BUILD, "--prefix", prefix], check=True, capture_output=True,
                           env=environment)
            installed = root + packages
            environment = {name: value for name, value in os.environ.items() if not name.startswith("KVTWIN_")}
            environment["PYTHONPATH"] = installed
            ran = subprocess.run([sys.executable, "-c", SCRIPT], cwd=root, env=environment, capture_output=True,
                                 text=True, check=False)
            self.assertEqual(ran.returncode, 0, ran.stderr)
            folder, program, digest, state = ran.stdout.split()
            self.assertEqual(folder, installed + "/kvtwin")
            self.assertEqual(program, f"{root}{prefix}/bin/kvtwin")
            import kvtwin
            self.assertEqual(digest, kvtwin.run("coding_agents_small", set={"replay.sessions_max": 2}).digest)
            self.assertEqual(state, "done")
            self.assertTrue(os.path.exists(installed + "/kvtwin/py.typed"))

    def test_usr(self):
        self.check("/usr", "/usr/lib/python3/dist-packages")

    def test_another_prefix(self):
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        self.check("/opt/kvtwin", f"/opt/kvtwin/lib/python{version}/dist-packages")


if __name__ == "__main__":
    support.main()
