#!/usr/bin/env python3
"""Paths and names as users type them: relative to the working directory, a shipped scenario's name, a wrong file."""

import os
import shutil

from program import MODELS, SHIPPED, SOURCE, CommandLine, main

SAMPLE = SHIPPED / "coding_agents_small.textproto"


class Paths(CommandLine):
    def one_session(self, scenario, *more, **how):
        return self.kvtwin("run", scenario, "--quiet", "--no-write", "--set=replay.sessions_max=1", *more, **how)

    def test_a_path_of_set_is_relative_to_the_working_directory_or_else_to_the_scenario_file(self):
        shutil.copy(SOURCE / "traces/data/coding_agents_small.kvtrace", "t.kvtrace")
        os.mkdir("gpu")
        shutil.copy(MODELS / "node/h200.textproto", "gpu/mine.textproto")
        shutil.copy(MODELS / "llm/llama-3.1-8b.textproto", "llm.textproto")
        plain = self.one_session(SAMPLE)
        for path in ("trace.path=t.kvtrace", "trace.path=./t.kvtrace", "hardware.node=gpu/mine.textproto",
                     "model.name=llm.textproto", "trace.path=../../traces/data/coding_agents_small.kvtrace"):
            with self.subTest(path):
                self.check_same_decisions(self.one_session(SAMPLE, f"--set={path}"), plain)
        # A path in the file itself is relative to the file only.
        text = SAMPLE.read_text()
        self.assertIn("../traces/data/", text)
        self.write("s/mine.textproto", text.replace("../traces/data/", ""))
        mine = self.one_session("s/mine.textproto", status=2)
        self.assertIn("paths are relative to the scenario file", mine.err)

    def test_a_nodes_device_is_relative_to_the_nodes_file_and_is_an_input_of_the_run(self):
        node = (MODELS / "node/h200.textproto").read_text()
        self.assertIn('device: "h200"', node)
        self.write("gpu/node.textproto", node.replace('device: "h200"', 'device: "mine-device.textproto"'))
        device = self.write("gpu/mine-device.textproto", (MODELS / "device/h200.textproto").read_text())
        os.mkdir("else")
        plain = self.one_session(SAMPLE)
        for place, path in (("", "gpu/node.textproto"), ("gpu", "node.textproto"), ("else", "../gpu/node.textproto")):
            with self.subTest(place):
                there = self.one_session(SAMPLE, f"--set=hardware.node={path}", cwd=self.folder / place)
                self.check_same_decisions(there, plain)

        def key():
            return self.kvtwin("sweep", SAMPLE, "--set=hardware.node=gpu/node.textproto", "--vary=seed=1", "--dry-run",
                               "--format=jsonl", "--quiet", "--out=s").lines[0]["key"]

        before = key()
        self.assertEqual(key(), before)
        device.write_text(device.read_text() + "# another device\n")
        self.assertNotEqual(key(), before)
        device.unlink()
        lacking = self.one_session(SAMPLE, "--set=hardware.node=gpu/node.textproto", status=2)
        self.assertIn("gpu/mine-device.textproto: cannot be opened", lacking.err)

    def test_a_shipped_scenarios_name_works_like_its_path(self):
        by_name = self.one_session("coding_agents_small")
        self.check_same_decisions(by_name, self.one_session(SAMPLE))
        self.assertIn("repeat: kvtwin run coding_agents_small --set", by_name.out)
        self.kvtwin("explain", "methods/dense", "--shape=decodes=1,context=64")
        self.kvtwin("sweep", "coding_agents_small", "--vary=seed=1", "--dry-run", "--out=s")
        self.kvtwin("sweep", "studies/requests_and_gpus.sweep", "--dry-run", "--out=s")
        # A file takes precedence over a name.
        self.write("coding_agents_small", 'model { nam: "x" }\n')
        self.refused('coding_agents_small:1:9: no field "nam"', "run", "coding_agents_small")

    def test_every_shipped_scenario_that_kvtwin_list_names_is_found_by_that_name(self):
        listed = self.kvtwin("list", "scenarios").out
        names = [line.split(" ")[0] for line in listed.splitlines()]
        self.assertGreater(len(names), 100)
        for name in names[::20]:  # each name is a process
            outcome = self.kvtwin("run", name, "--no-write", "--set=limits.requests_max=0", status=2)
            self.assertNotIn("is neither a file nor a shipped scenario", outcome.err)
        # Files that scenarios refer to are not listed; descriptions need no data.
        for absent in ("triaxial_tags", "does not exist", "trace.path is missing"):
            self.assertNotIn(absent, listed)

    def test_a_damaged_archive_and_a_trace_that_is_given_as_a_scenario_are_recognised(self):
        self.write("requests.jsonl.xz", b"\xfd7zXZ\0more")
        self.refused("requests.jsonl.xz: cannot be decompressed", "trace", "inspect", "requests.jsonl.xz")
        self.write("m.jsonl", '{"timestamp":0,"input_length":20,"output_length":3,"hash_ids":[1]}\n')
        self.assertEqual(self.kvtwin("run", "m.jsonl", status=2).err.count("\n"), 1)
        # The command of the message works.
        self.kvtwin("run", "coding_agents_small", "--quiet", "--no-write", "--set=trace.path=m.jsonl",
                    "--set=trace.format=mooncake")

    def test_only_a_full_disk_is_reported_as_one(self):
        self.kvtwin("run", SAMPLE, "--quiet", "--set=replay.sessions_max=1", "--out=r")
        report = self.kvtwin("report", "r", f"--out={'p' * 250}.md", status=3)
        self.assertIn("p.md: cannot be written: File name too long; check the folder", report.err)

    def test_kernel_times_are_not_imported_into_a_folder_with_other_files(self):
        mlp, _, attention = (SOURCE / "tests/fuzz/vidur_fuzz/small").read_text().partition("\n\n")
        self.write("vidur/mlp.csv", mlp)
        self.write("vidur/attention.csv", attention)
        self.write("four.textproto",
                   'name: "four" source: "test" layers: 2 query_heads: 4 kv_heads: 2 head_dim: 16 hidden: 64\n'
                   "intermediate: 256 vocab: 1000 context_window: 4096 rope { theta: 10000 }\n"
                   "weights { dtype: BF16 } kv { dtype: BF16 }\n")
        words = ("import", "vidur", "--model=four.textproto", "--out=p")
        self.kvtwin(*words)
        self.kvtwin(*words)  # a repetition is accepted
        skew = self.write("p/tp1/skew.csv", "of another profile")
        notes = self.write("p/notes.txt", "mine")
        self.refused("which this import did not write; another --out; --force replaces", *words)
        self.assertTrue(skew.exists())
        notes.unlink()
        self.kvtwin(*words, "--gpu=other", status=2)
        notes.write_text("mine")
        self.kvtwin(*words, "--force")
        self.assertFalse(skew.exists())
        self.assertTrue((self.folder / "p/tp1/dense.csv").exists())
        self.assertEqual(notes.read_text(), "mine")


main()
