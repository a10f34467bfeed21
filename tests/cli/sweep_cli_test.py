#!/usr/bin/env python3
"""kvtwin sweep: killed, resumed, repeated, sharded, on a full disk, over damaged results."""

import contextlib
import fcntl
import os
import pathlib
import resource
import shutil
import signal
import sqlite3
import subprocess
import time
from unittest import mock

from program import KVTWIN, MODELS, SHIPPED, CommandLine, main

SAMPLE = SHIPPED / "coding_agents_small.textproto"
GRID = ("--vary=limits.requests_max=4..64*2", "--vary=memory.gpu_pages=5000..12000+1000")
POINTS = 40
FEW = "--set=replay.sessions_max=1"


class Sweep(CommandLine):
    def sweep(self, *more, scenario=SAMPLE, out="s", **how):
        return self.kvtwin("sweep", scenario, f"--out={out}", *more, **how)

    def query(self, sql):
        with contextlib.closing(sqlite3.connect("s/index.sqlite")) as index:
            return index.execute(sql).fetchone()[0]

    def points_done(self):
        return sum((point / "run.binpb").exists() for point in (self.folder / "s/points").glob("*"))

    def point_folders(self):
        return sum(entry.is_dir() for entry in os.scandir(self.folder / "s/points"))

    def test_killed_five_times_no_point_is_lost_or_duplicated_and_all_locks_are_free(self):
        survived = 0
        for delay_ms in (0, 23, 5, 41, 12):
            process = subprocess.Popen([KVTWIN, "sweep", SAMPLE, "--out=s", *GRID], stdout=subprocess.DEVNULL,
                                       stderr=subprocess.DEVNULL)
            deadline = time.monotonic() + 30
            while self.points_done() <= survived and time.monotonic() < deadline:
                time.sleep(0.01)
            time.sleep(delay_ms / 1000)
            process.kill()
            process.wait()
            survived = self.points_done()
        self.assertGreaterEqual(survived, 5)
        words = GRID + ("--format=jsonl",)
        end = self.sweep(*words)
        rows = end.lines
        self.assertEqual([(row["state"], row["metrics"]["requests_finished"]) for row in rows],
                         [("done", 617)] * POINTS)
        self.assertEqual(len({row["key"] for row in rows}), POINTS)
        self.assertEqual(self.point_folders(), POINTS)
        self.assertEqual(self.query("SELECT count(*) FROM points WHERE state='done'"), POINTS)
        self.assertEqual(
            self.query("SELECT count(*) FROM metrics WHERE name='requests_finished' AND value=617"), POINTS)
        again = self.sweep(*words)
        self.assertEqual(again.out, end.out)
        self.assertNotIn("points, 0 failed, about", again.err)  # nothing ran
        # One more value: only the new points run.
        more = self.sweep("--vary=limits.requests_max=4..128*2", *words[1:])
        self.assertEqual(len(more.lines), POINTS + 8)

    def test_what_a_killed_worker_left_of_a_finished_point_is_removed(self):
        words = ("--vary=limits.requests_max=4,8",)
        self.sweep(*words)
        points = self.folder / "s/points"
        key = next(point.name for point in points.iterdir())
        with subprocess.Popen(["sleep", "60"]) as unreaped:
            unreaped.kill()  # wait() comes later: until then it has a number, but no longer runs
            start = pathlib.Path(f"/proc/{unreaped.pid}/stat").read_text().rpartition(")")[2].split()[19]
            left = points / f"{key}.kvtwin-run-{unreaped.pid}-{start}"
            of_another_sweep = points / f"0123456789abcdef.kvtwin-run-{unreaped.pid}-{start}"
            for folder in (left, of_another_sweep):
                folder.mkdir()
            own_start = pathlib.Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
            being_written = points / f"{key}.kvtwin-run-{os.getpid()}-{own_start}"
            being_written.mkdir()
            self.sweep(*words)
        self.assertEqual([folder.exists() for folder in (left, of_another_sweep, being_written)],
                         [False, True, True])

    def test_shards_divide_the_points_and_collecting_runs_none_of_them_again(self):
        for shard in ("0/3", "2/3", "1/3"):
            self.sweep(*GRID, f"--shard={shard}")
        collected = self.sweep(*GRID, "--format=csv")
        self.assertNotIn("about", collected.err)
        self.assertEqual(collected.out, self.sweep(*GRID, "--format=csv", out="whole").out)

    def test_an_invalid_point_and_a_point_that_cannot_run_are_rows_with_their_errors(self):
        rows = self.sweep("--vary=limits.requests_max=8,none", "--vary=memory.gpu_pages=9000,3", "--format=jsonl",
                          status=1).lines
        self.assertEqual([row["state"] for row in rows], ["done", "failed", "failed", "failed"])
        self.assertIn("pages", rows[1]["error"])
        self.assertIn('"none" is not a value of limits.requests_max', rows[2]["error"])

    def test_damaged_results_are_reported_and_recomputed_and_a_damaged_index_is_rebuilt(self):
        words = ("--vary=limits.requests_max=4,8", "--format=jsonl")
        first = self.sweep(*words)
        key = first.lines[1]["key"]
        self.write(f"s/points/{key}/run.binpb", "garbage")
        self.write("s/index.sqlite", "x" * 5000)
        second = self.sweep(*words)
        self.assertEqual(second.out, first.out)
        self.assertIn(key + "/run.binpb: is not a run result", second.err)
        self.assertIn("it is made again from the points", second.err)
        self.assertEqual(self.query("SELECT count(*) FROM points WHERE state='done'"), 2)

    def test_a_full_disk_ends_it_with_a_clear_error_and_no_finished_point_is_lost(self):
        words = ("--vary=limits.requests_max=4,8,16", "--jobs=1")

        def small_files():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # writes fail instead
            resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))

        full = subprocess.run([KVTWIN, "sweep", SAMPLE, "--out=s", *words], preexec_fn=small_files,
                              capture_output=True, text=True)
        self.assertEqual(full.returncode, 3)
        self.assertIn("cannot be written", full.stderr)
        self.sweep(*words)

    def test_of_two_concurrent_sweeps_in_one_folder_the_second_is_refused(self):
        os.makedirs("s/points")
        with open("s/.lock-0-of-1", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            out = self.sweep("--vary=limits.requests_max=4,8", status=3)
        self.assertIn("another process runs a sweep in this folder", out.err)

    def test_a_folder_belongs_to_one_sweep_another_is_refused_without_force(self):
        mine = (FEW, "--quiet", "--vary=limits.requests_max=4,8")
        self.sweep(*mine)
        index, noted = self.read("s/index.sqlite"), self.read("s/sweep.textproto")
        for other in ((FEW, "--vary=limits.step_tokens_max=512,1024"), mine + ("--vary=seed=1,2",),
                      ("--set=replay.sessions_max=2", "--vary=limits.requests_max=4,8"),
                      (FEW, "--vary=seed=1..9+1", "--halve=e2e_mean_ms:min", "--rungs=replay.sessions_max=1,2")):
            with self.subTest(other):
                refused = self.sweep(*other, status=2)
                self.assertIn("s: belongs to another sweep: coding_agents_small over limits.requests_max with "
                              "replay.sessions_max=1; another --out; --force", refused.err)
        self.sweep(*mine, scenario=SHIPPED / "search_tiny.textproto", status=2)
        self.assertEqual(self.points_done(), 2)
        self.assertEqual(self.read("s/index.sqlite"), index)
        self.assertEqual(self.read("s/sweep.textproto"), noted)
        # The same sweep: another path to the scenario, more values, fewer, a shard, a sample.
        self.sweep(FEW, "--vary=limits.requests_max=4,8,16", scenario="coding_agents_small")
        self.sweep(FEW, "--vary=limits.requests_max=8,32", "--shard=1/2")
        self.sweep(FEW, "--vary=limits.requests_max=1..64", "--samples=2")
        self.sweep(FEW, "--vary=limits.step_tokens_max=512,1024", "--force")
        self.assertEqual(self.query("SELECT count(*) FROM points"), 2)
        self.sweep(*mine, status=2)

    def test_without_out_its_folder_is_named_after_the_sweep_and_json_is_one_list(self):
        def sweep(vary):
            made = self.kvtwin("sweep", SAMPLE, FEW, f"--vary={vary}", "--format=json")
            return made.json, made.err.partition("; in ")[2].split()[0]

        (first, folder), (longer, same) = sweep("limits.requests_max=4,8"), sweep("limits.requests_max=4,8,16")
        self.assertEqual(len(first), 2)
        self.assertEqual(longer[2]["axes"]["limits.requests_max"], "16")
        self.assertEqual(folder, same)
        self.assertNotEqual(folder, sweep("seed=1,2")[1])
        self.assertTrue(folder.startswith("out/sweep-"))

    def test_halving_runs_all_points_at_low_cost_and_the_best_in_full(self):
        out = self.sweep("--vary=limits.requests_max=1..9+1", "--halve=e2e_mean_ms:min",
                         "--rungs=replay.sessions_max=2,6,24", "--format=jsonl")
        self.assertEqual([row["metrics"]["sessions"] for row in out.lines], [24])
        self.assertIn("replay.sessions_max=2: 3 of 9 points continue", out.err)
        self.assertIn("replay.sessions_max=6: 1 of 3 points continue", out.err)
        self.assertEqual(self.points_done(), 9 + 3 + 1)

    def test_a_file_has_the_same_meaning_as_the_command_line(self):
        file = self.write("s.sweep.textproto",
                          f'scenario: "{SAMPLE}"\nvary: "limits.requests_max=4,8"\nset: "replay.sessions_max=2"\n'
                          'samples: 0 columns: "steps"\n')
        by_file = self.sweep("--format=jsonl", scenario=file, out="f")
        by_words = self.sweep("--vary=limits.requests_max=4,8", "--set=replay.sessions_max=2", "--format=jsonl")
        self.assertEqual(by_file.out, by_words.out)
        more = self.sweep("--vary=seed=1,2", "--format=jsonl", "--force", scenario=file, out="f")
        self.assertIn("4 points", more.err)
        self.write("s.sweep.textproto", 'scenario: "x"\nvari: "a=1"\n')
        self.assertIn("s.sweep.textproto:2:", self.sweep(scenario=file, out="f", status=None).err)

    def test_a_changed_default_price_or_rate_makes_new_points_and_writing_a_default_out_does_not(self):
        def key(*more):
            rows = self.sweep(*more, "--vary=limits.requests_max=4", "--dry-run", "--format=jsonl").lines
            self.assertEqual(len(rows), 1)
            return rows[0]["key"]

        as_it_is = key()
        self.assertEqual(key("--set=limits.evict_batch_pages=64"), as_it_is)  # the default
        self.assertNotEqual(key("--set=limits.evict_batch_pages=65"), as_it_is)
        self.assertEqual(key("--set=engines.prefill=0"), as_it_is)
        self.assertEqual(key("--set=name=other"), as_it_is)
        shutil.copytree(MODELS, "models")
        with mock.patch.dict(os.environ, KVTWIN_MODELS=str(self.folder / "models")):
            self.assertEqual(key(), as_it_is)
            with open("models/device/h200.textproto", "a") as device:
                device.write("# another price\n")
            self.assertNotEqual(key(), as_it_is)


main()
