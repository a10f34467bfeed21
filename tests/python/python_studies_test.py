"""kvtwin.sweep and kvtwin.plan against the tool's commands."""

import json
import math
import os
import subprocess
import sys
import tempfile
import unittest

import support
import numpy as np

import kvtwin

VARY = {"memory.gpu_pages": [5000, 8000], "seed": "1,2"}
FEW = {"replay.sessions_max": 6}


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name


class Sweep(Folder):
    def test_as_the_tool(self):
        table, _ = support.tool("sweep", support.SMALL, "--vary=memory.gpu_pages=5000,8000", "--vary=seed=1,2",
                                "--set=replay.sessions_max=6", "--out=" + self.folder + "/tool", "--quiet")
        swept = kvtwin.sweep(support.SMALL, VARY, FEW, out=self.folder + "/module", jobs=2)
        self.assertEqual(str(swept), table)
        ours, theirs = support.files_of(swept.folder), support.files_of(self.folder + "/tool")
        points = [name for name in theirs if name.startswith("points/")]
        self.assertGreater(len(points), 8)
        self.assertEqual(points, [name for name in theirs if name in ours and name.startswith("points/")])
        for name in points:
            self.assertEqual(ours[name], theirs[name], name)
        # The tool takes the module's folder as its own.
        again, _ = support.tool("sweep", support.SMALL, "--vary=memory.gpu_pages=5000,8000", "--vary=seed=1,2",
                                "--set=replay.sessions_max=6", "--out=" + swept.folder, "--dry-run", "--quiet")
        self.assertEqual(again, table)

    def test_points(self):
        swept = kvtwin.sweep(support.SMALL, VARY, FEW, out=self.folder, jobs=2)
        self.assertEqual([point["state"] for point in swept.points], ["done"] * 4)
        np.testing.assert_array_equal(swept["memory.gpu_pages"], [5000, 5000, 8000, 8000])
        for i, pages in enumerate([5000, 5000, 8000, 8000]):
            one = kvtwin.run(support.SMALL, set={**FEW, "memory.gpu_pages": pages}, seed=1 + i % 2)
            self.assertEqual(swept.result(i).digest, one.digest)
            self.assertEqual(swept["ttft_p99"][i], one["ttft_p99_ms"])
        if support.has("pandas"):
            frame = swept.to_pandas()
            self.assertEqual(frame.shape[0], 4)
            self.assertEqual(frame.groupby("memory.gpu_pages").requests.sum().tolist(), [2 * one["requests"]] * 2)
        with self.assertRaisesRegex(kvtwin.Error, 'there is no axis or metric "nonsense"'):
            swept["nonsense"]

    def test_shards_and_repetition(self):
        first = kvtwin.sweep(support.SMALL, VARY, FEW, out=self.folder, shard="0/2", jobs=1)
        self.assertEqual([point["state"] for point in first.points], ["done", "missing", "done", "missing"])
        self.assertTrue(math.isnan(first["ttft_p99_ms"][1]))
        with self.assertRaisesRegex(kvtwin.Error, "point 1: is missing"):
            first.result(1)
        kvtwin.sweep(support.SMALL, VARY, FEW, out=self.folder, shard="1/2", jobs=1)
        before = {path: os.stat(os.path.join(self.folder, path)).st_mtime_ns
                  for path in support.files_of(self.folder) if path.startswith("points/")}
        whole = kvtwin.sweep(support.SMALL, VARY, FEW, out=self.folder)
        self.assertEqual([point["state"] for point in whole.points], ["done"] * 4)
        for path, time in before.items():
            self.assertEqual(os.stat(os.path.join(self.folder, path)).st_mtime_ns, time, path)

    def test_scenario_of_a_dict(self):
        trace = os.path.relpath(os.path.join(support.SOURCE, "traces/data/coding_agents_small.kvtrace"))
        fields = {"model": {"name": "llama-3.1-8b"}, "hardware": {"node": "h200"},
                  "trace": {"path": trace, "format": "kvtwin"}}
        swept = kvtwin.sweep(fields, {"seed": [1, 2]}, FEW, out=self.folder)
        self.assertEqual(swept.result(1).digest, kvtwin.run(fields, FEW, seed=2).digest)
        with self.assertRaisesRegex(kvtwin.Error, "out is missing"):
            kvtwin.sweep(fields, {"seed": [1, 2]})

    def test_failed_points(self):
        swept = kvtwin.sweep(support.SMALL, {"limits.requests_max": [8, -1]}, FEW, out=self.folder)
        self.assertEqual([point["state"] for point in swept.points], ["done", "failed"])
        self.assertIn("requests_max", swept.points[1]["error"])

    def test_errors(self):
        for words, arguments in [
                (["--vary=limits.nonsense=1,2"], {"vary": {"limits.nonsense": [1, 2]}}),
                (["--vary=seed=2..1"], {"vary": {"seed": "2..1"}}),
                (["--vary=seed=1,2", "--shard=3/2"], {"vary": {"seed": [1, 2]}, "shard": "3/2"}),
                (["--vary=seed=1,2", "--set=replay.population=4"],
                 {"vary": {"seed": [1, 2]}, "set": {"replay.population": 4}})]:
            _, message = support.tool("sweep", support.SMALL, *words, "--out=" + self.folder, status=2)
            with self.assertRaises(kvtwin.Error) as raised:
                kvtwin.sweep(support.SMALL, **arguments, out=self.folder)
            self.assertEqual(str(raised.exception) + "\n", message)
        kvtwin.sweep(support.SMALL, {"seed": [1]}, FEW, out=self.folder)
        with self.assertRaisesRegex(kvtwin.Error, "belongs to|another sweep"):
            kvtwin.sweep(support.SMALL, {"limits.requests_max": [8]}, FEW, out=self.folder)

    def test_other_children_are_left_alone(self):
        other = subprocess.Popen([sys.executable, "-c", "raise SystemExit(5)"])
        kvtwin.sweep(support.SMALL, {"seed": [1, 2]}, FEW, out=self.folder)
        self.assertEqual(other.wait(), 5)  # 0 if the sweep had waited for it

    def test_interrupt(self):
        script = ("import kvtwin, os, signal, sys, threading\n"
                  "threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
                  "try:\n"
                  "    kvtwin.sweep('coding_agents_small', {'seed': '1..200+1'}, out=sys.argv[1], jobs=1)\n"
                  "except KeyboardInterrupt: print('interrupted')\n")
        ran = subprocess.run([sys.executable, "-c", script, self.folder], capture_output=True, text=True, timeout=100,
                             check=True)
        self.assertEqual(ran.stdout, "interrupted\n")
        done = len(os.listdir(self.folder + "/points"))
        self.assertLess(done, 200)


class Plan(Folder):
    ARGUMENTS = ["--slo=ttft_p95<5s", "--load=replay.population=1..6", "--need=2",
                 "--vary=memory.gpu_pages=5000,16000", "--set=replay.sessions_max=6",
                 "--set=replay.arrivals=fixed_population", "--seeds=1", "--allow-roofline"]

    def plan(self, out):
        return kvtwin.plan(support.SMALL, slo="ttft_p95<5s", load="replay.population=1..6", need=2, seeds=1,
                           vary={"memory.gpu_pages": [5000, 16000]}, set={**FEW, "replay.arrivals": "fixed_population"},
                           out=out, allow_roofline=True)

    def test_as_the_tool(self):
        made = self.plan(self.folder + "/module")
        with open(self.folder + "/module/plan.json", encoding="utf-8") as file:
            ours = file.read()
        words = ["plan", support.SMALL, *self.ARGUMENTS, "--out=" + self.folder + "/module", "--quiet"]
        table, _ = support.tool(*words, status=0 if made.best else 1)
        self.assertEqual(str(made), table)
        with open(self.folder + "/module/plan.json", encoding="utf-8") as file:
            self.assertEqual(ours, file.read())
        text, _ = support.tool(*words, "--format=json", status=0 if made.best else 1)
        self.assertEqual(made.candidates, json.loads(text)["candidates"])
        self.assertEqual(made.best["name"] if made.best else None, json.loads(text).get("best"))
        if support.has("pandas"):
            self.assertEqual(len(made.to_pandas()), 2)

    def test_errors(self):
        with self.assertRaises(kvtwin.Error) as raised:
            kvtwin.plan(support.SMALL, slo="ttft_p98<2s", load="replay.population=1..6", need=1, out=self.folder)
        _, message = support.tool("plan", support.SMALL, "--slo=ttft_p98<2s", "--load=replay.population=1..6",
                                  "--need=1", "--out=" + self.folder, status=2)
        self.assertEqual(str(raised.exception) + "\n", message)


if __name__ == "__main__":
    support.main()
