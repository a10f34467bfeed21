#!/usr/bin/env python3
"""Promises of every command: complete output, answers to the question that was asked, output folders of one run."""

import os
import re
import shutil
from unittest import mock

from program import SHIPPED, SOURCE, CommandLine, main

SAMPLE = SHIPPED / "coding_agents_small.textproto"
ONE_SESSION = "--set=replay.sessions_max=1"


class CommandLines(CommandLine):
    def run_into(self, out, *more, status=0):
        return self.kvtwin("run", SAMPLE, "--quiet", ONE_SESSION, f"--out={out}", *more, status=status)

    def test_a_setting_that_one_point_of_a_sweep_reads_or_that_a_file_holds_is_accepted(self):
        self.kvtwin("sweep", SAMPLE, "--quiet", "--vary=replay.arrivals=recorded,fixed_population",
                    "--vary=replay.population=1,2", "--set=replay.sessions_max=2", "--out=s")
        self.write("mine.textproto", SAMPLE.read_text() + "\nreplay { population: 3 }\n")
        run = self.kvtwin("run", "mine.textproto", "--no-write", "--quiet", ONE_SESSION,
                          f"--set=trace.path={SOURCE}/traces/data/none", status=None)
        self.assertNotIn("is not read", run.err)
        allowed = self.kvtwin("run", SAMPLE, "--no-write", "--quiet", "--allow-unread", "--set=replay.population=4",
                              ONE_SESSION)
        self.assertIn("--allow-unread", allowed.out)

    def test_a_plan_answers_only_the_question_that_was_asked(self):
        plan = ("plan", SAMPLE, "--quiet", "--seeds=1", "--slo=ttft_p99<60s", "--out=p")
        # The setting is read but has no effect: no request is ever rejected.
        self.refused("--load=replay.retries_max: the runs at 1 and 3 are equal", *plan,
                     "--set=replay.on_reject=retry", "--load=replay.retries_max=1..3", "--need=2", "--allow-roofline")
        population = plan + ("--set=replay.arrivals=fixed_population", "--allow-roofline",
                             "--load=replay.population=1..500")
        self.refused("--need=200: the trace has 24 sessions, so 200 are never in flight; --set=replay.replicas=9",
                     *population, "--need=200")
        capped = self.kvtwin(*population, "--need=16")
        self.assertIn("The trace has 24 sessions, too few for 500 in flight", capped.out)
        self.assertIn("holds population of at least 24 (16 needed", capped.out)
        unjudged = self.kvtwin(*plan, "--set=replay.arrivals=fixed_population", "--load=replay.population=1..4",
                               "--need=2", status=2)
        self.assertTrue(unjudged.out.startswith("Not judged: "), unjudged.out)

    def test_a_metrics_words_may_come_in_another_order(self):
        named = self.kvtwin("sweep", SAMPLE, "--vary=memory.host_bytes=1GB,2GB", ONE_SESSION,
                            "--columns=p99_ttft_ms,prefix_reuse", "--quiet", "--out=o")
        self.assertIn("ttft_p99_ms  prefix_reuse", named.out)

    def test_output_that_cannot_be_written_is_exit_status_3(self):
        run = f"run {SAMPLE} --quiet --no-write {ONE_SESSION}"
        for words in (run, run + " --format=json", "list policies", "--help", "--version",
                      f"sweep {SAMPLE} --quiet --vary=limits.requests_max=1,2 {ONE_SESSION} --out=s --format=csv",
                      f"trace inspect {SOURCE}/traces/data/coding_agents_small.kvtrace"):
            for to in (">/dev/full", ">&-"):
                with self.subTest(words + to):
                    self.assertIn("cannot ", self.shell(f"{words} {to}", status=3).err)
        # Without output nothing can be lost, and no file receives the printed text.
        self.shell(run + " >/dev/null")

    def test_an_output_folder_holds_one_run(self):
        self.run_into("o", "--record", "--timeline=0..1")
        log = self.folder / "o/log.binpb"
        self.assertTrue(log.exists())
        self.kvtwin("replay", "o")
        # Other inputs: refused before anything runs, and nothing is changed.
        before = self.read("o/run.binpb")
        other = self.run_into("o", "--set=limits.requests_max=2", status=2)
        self.assertIn("holds the result of other inputs (coding_agents_small)", other.err)
        self.assertEqual(self.read("o/run.binpb"), before)
        # The same inputs without a log remove the old log; foreign files stay.
        self.write("o/notes.txt", "mine")
        self.run_into("o")
        self.assertFalse(log.exists())
        self.assertFalse((self.folder / "o/timeline.json").exists())
        self.assertEqual(self.read("o/notes.txt"), "mine")
        self.assertEqual(self.read("o/run.binpb"), before)
        os.remove("o/notes.txt")
        self.run_into("o", "--record")
        self.run_into("o", "--set=limits.requests_max=2", "--force")
        self.assertFalse(log.exists())
        self.assertEqual([name for name in os.listdir() if "kvtwin-run" in name], [])

    def test_replay_refuses_a_log_next_to_the_result_of_another_run(self):
        self.run_into("a", "--record")
        self.run_into("b", "--record", "--set=limits.step_tokens_max=512")
        shutil.copy("a/log.binpb", "b/log.binpb")
        self.refused("is the log of another run", "replay", "b")
        self.kvtwin("replay", "b/log.binpb")

    def test_an_import_does_not_mix_with_another_result(self):
        self.run_into("o", "--record")
        self.write("bench.json", '{"input_lens":[10],"output_lens":[2],"ttfts":[0.1],"itls":[[0.1]],"errors":[""],'
                                 '"start_times":[0.0],"duration":1.0,"completed":1,"model_id":"m"}')
        words = ("import", "bench.json", "--format=bench", "--out=o")
        self.refused("holds the result of other inputs", *words)
        self.kvtwin(*words, "--force")
        self.assertFalse((self.folder / "o/log.binpb").exists())
        self.kvtwin(*words)

    def test_leftovers_of_a_killed_run_of_the_same_folder_are_removed_and_files_of_a_live_one_stay(self):
        # The names of drafts have the process id and its start: field 22 of proc(5)'s stat.
        with open("/proc/self/stat") as stat:
            start = stat.read().rpartition(")")[2].split()[22 - 3]
        alive = f"o.kvtwin-run-{os.getpid()}-{start}/run.binpb"
        dead = "o.kvtwin-run-4194305-1"  # an id that cannot be in use
        self.write(dead + "/run.binpb", "cut")
        self.write(alive, "being written")
        self.write("other.kvtwin-run-4194305-1/run.binpb", "of another folder")
        self.run_into("o")
        self.assertFalse(os.path.exists(dead))
        self.assertTrue(os.path.exists(alive))
        self.assertTrue(os.path.exists("other.kvtwin-run-4194305-1/run.binpb"))

    def test_pipes_and_devices_are_refused_as_input_files(self):
        os.mkfifo("pipe")
        for file in (self.folder / "pipe", "/dev/zero"):
            for words in (f"run {file}", f"run {SAMPLE} --set=trace.path={file}", f"trace inspect {file}",
                          f"run {SAMPLE} --set=cost.profile={file}", f"compare {file} x", f"replay {file}",
                          f"import --out=x {file}", f"model import --name=x {file}",
                          f"trace import mooncake --out=x {file}"):
                with self.subTest(words):
                    self.assertRegex(self.shell(words + " >/dev/null", status=2).err,
                                     "is a pipe|is a device|x/run.binpb")

    def test_the_words_that_users_try_first_are_answered(self):
        def out(*words):
            return self.kvtwin(*words).out

        main_help, run_help, version = out("--help"), out("run", "--help"), out("--version")
        self.assertNotEqual(run_help, main_help)
        self.assertEqual([out("-h"), out("help")], [main_help] * 2)
        self.assertEqual([out("help", "run"), out("run", "-h")], [run_help] * 2)
        self.assertEqual([out("version"), out("-V")], [version] * 2)
        for command in ("run", "replay", "sweep", "plan", "report", "compare", "trace", "model", "device", "explain",
                        "calibrate", "validate", "inspect-policy", "evaluate", "import", "list", "doctor"):
            self.assertIn(f"\n  kvtwin {command} ", main_help)
        self.assertIn("formats", main_help)

    def test_the_help_of_every_command_has_its_options(self):
        commands = re.findall(r"^    '(.+)'\) commands='.*'; options='(.*)' ;;$", self.kvtwin("completion", "bash").out, re.M)
        self.assertGreater(len(commands), 40)
        for command, options in commands:
            with self.subTest(command):
                shown = self.kvtwin(*command.split(), "--help").out
                known = {option.rstrip("=") for option in options.split()}
                self.assertLessEqual(known - {"--help"}, set(re.findall(r"--[a-z-]+", shown)))
                self.assertLessEqual(set(re.findall(r"^  (--[a-z-]+)", shown, re.M)), known)

    def test_doctor_names_the_gpu_its_node_of_the_catalog_and_its_measured_step_times(self):
        for gpu, node, profile in (("none", "", ""),
                                   ("NVIDIA H100 80GB HBM3", '"this" is "h100"', "h100.textproto (2026"),
                                   ("NVIDIA L40S", '"this" is "l40s"', "calibrate device --out="),
                                   ("NVIDIA T4", "no node has this GPU", "")):
            with self.subTest(gpu), mock.patch.dict(os.environ, KVTWIN_GPU=gpu):
                found = self.kvtwin("doctor").out
                self.assertIn(node, found)
                self.assertIn(profile, found)


main()
