#!/usr/bin/env python3
"""kvtwin model and kvtwin device: files of models, profiles and GPUs."""

import re

from program import SOURCE, CommandLine, main

NPZ = SOURCE / "tests/fuzz/npz_fuzz/deflated"


class Model(CommandLine):
    def model(self, *words, **how):
        return self.kvtwin("model", *words, **how)

    def test_import_writes_a_file_that_the_catalog_reads(self):
        self.write("config.json", '{"model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": '
                                  '64, "intermediate_size": 128, "vocab_size": 100, "max_position_embeddings": 512}')
        self.model("import", "config.json", "--name=small", "--out=small.textproto")
        shown = self.model("show", "small.textproto").out
        self.assertTrue(shown.startswith("small  (llama, "), shown)
        self.assertRegex(shown, r"\n  layers +2\n")
        self.model("import", "absent.json", "--name=x", status=2)
        self.model("import", "config.json", "--name=x", "--out=no/such/folder", status=3)

    def test_import_profile_writes_a_profile_with_its_budgets(self):
        self.model("import-profile", NPZ, "--name=small", "--alpha=1", "--group=2", "--out=p.textproto")
        text = self.read("p.textproto")
        self.assertIn('name: "small"\n', text)
        self.assertAlmostEqual(float(re.search(r"^mu: \[[^,]*, ([^,]*),", text, re.M).group(1)), 0.45)
        self.assertIn("alpha: 1\n", text)
        self.model("import-profile", NPZ, "--alpha=-1", status=2)
        self.model("import-profile", NPZ, "--group=0", "--out=p.textproto", status=2)
        self.model("import-profile", "p.textproto", status=2)
        self.model("import-profile", NPZ, "--out=no/such/folder", status=3)

    def test_show_refuses_unknown_models_and_impossible_splits(self):
        self.model("show", "qwen3-32b", "--tp=4")
        self.model("show", "qwen3-33b", status=2)
        self.model("show", "qwen3-32b", "--tp=3", status=2)


class Device(CommandLine):
    def device(self, *words, **how):
        return self.kvtwin("device", *words, **how)

    def test_new_writes_a_device_and_a_node_that_work_at_once(self):
        self.device("new", "mine", "--base=H100", "--out=gpus")
        figure = re.search(r"\n  hbm_bytes_per_s +(\d+) ", self.device("check", "h100").out).group(1)
        self.assertRegex(self.device("check", "gpus/mine.textproto").out, rf"\n  hbm_bytes_per_s +{figure} ")
        self.assertIn("a node with every figure", self.device("check", "gpus/mine-node.textproto").out)
        self.kvtwin("run", "coding_agents_small", "--quiet", "--no-write", "--set=replay.sessions_max=1",
                    "--set=hardware.node=gpus/mine-node.textproto")
        self.device("new", "mine", "--base=h100", "--out=gpus", status=2)  # it is there already
        self.device("new", "second", "--base=gpus/mine.textproto", "--out=gpus")
        self.device("check", "gpus/second.textproto")
        # Every figure of the base is there as a comment: uncommenting them all gives a file that needs no base.
        text = re.sub(r"^# (?=\w+ { value: |  source: )", "", self.read("gpus/mine.textproto"), flags=re.M)
        self.write("all.textproto", text.replace('base: "H100"\n', ""))
        self.assertIn("with every figure that it needs", self.device("check", "all.textproto").out)

    def test_check_names_the_origin_of_every_figure(self):
        report = self.device("check", "h20").out
        self.assertIn("are of its base, h100", report)
        self.assertIn("hbm_bytes_per_s             4000000000000  datasheet  this file", report)
        self.device("check", "h2000", status=2)


main()
