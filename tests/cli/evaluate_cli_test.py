#!/usr/bin/env python3
"""kvtwin evaluate: the shipped model still answers as it did, and the table of answers is consistent.

tests/golden/quality/answers.csv has the stored result of each combination below. New numbers may differ from it within
their intervals. After an intended change:

  cd scenarios/quality
  for p in full random snapkv judge_q quest int4; do sets="$sets $p.textproto"; done
  kvtwin evaluate $sets --tasks=multi_key,old_result --budgets=64 --questions=24 --per-session=6 --out=DIR
  cp DIR/quality.csv ../../tests/golden/quality/answers.csv
"""

import json
import os
import shutil

from program import MODELS, SOURCE, CommandLine, main, rows_of

QUALITY = SOURCE / "scenarios/quality"
FEW = ("--tasks=needle,tool_schema", "--budgets=32,64", "--questions=4", "--tokens=128", "--quiet")


class Row(dict):
    """A row of quality.csv; figures by name."""

    def __call__(self, name):
        return float(self[name])


def cells(csv):
    """Rows by "policy task"."""
    return {f"{row['policy']} {row['task']}": Row(row) for row in rows_of(csv)}


class Evaluate(CommandLine):
    def evaluate(self, policies, *more, **how):
        return self.kvtwin("evaluate", *(QUALITY / f"{policy}.textproto" for policy in policies.split()), *more, **how)

    def cells_in(self, folder):
        return cells(self.read(f"{folder}/quality.csv"))

    def test_stored_accuracies_are_within_the_intervals_and_full_random_and_chance_differ(self):
        words = ("full random snapkv judge_q quest int4", "--tasks=multi_key,old_result", "--budgets=64",
                 "--questions=24", "--per-session=6", "--out=q")
        done = self.evaluate(*words)
        self.assertEqual(done.err.count("\n"), 12)
        rows, stored = self.cells_in("q"), cells((SOURCE / "tests/golden/quality/answers.csv").read_text())
        self.assertEqual((len(rows), len(stored)), (12, 12))
        for cell, row in rows.items():
            with self.subTest(cell):
                self.assertEqual(row["refused"], "")
                self.assertEqual(row["answered"], row["questions"])
                self.assertLessEqual(row("accuracy_low"), stored[cell]("accuracy"))
                self.assertLessEqual(stored[cell]("accuracy"), row("accuracy_high"))
                # Answers have two of 64 symbols, so chance is almost never right.
                self.assertLessEqual(row("right_permuted"), 2)
        for task in ("multi_key", "old_result"):
            full, random, quest = rows[f"full {task}"], rows[f"random {task}"], rows[f"quest {task}"]
            self.assertGreaterEqual(full("accuracy"), 0.9)
            self.assertLess(random("accuracy_high"), full("accuracy_low"))
            self.assertGreater(random("token_loss_above_full"), 1)
            self.assertLess(random("kv_fraction"), 0.5)
            self.assertEqual(full("kv_fraction"), 1)
            # The part that is read of the full cache: everything in the first of six layers, 64 of about 370 tokens
            # in the others.
            self.assertGreater(quest("accuracy_low"), random("accuracy_high"))
            self.assertEqual(quest("kv_fraction"), 1)
            self.assertLess(quest("kv_read_bytes_mean"), 0.4 * full("kv_bytes_mean"))
            self.assertGreaterEqual(rows[f"judge_q {task}"]("accuracy"), rows[f"snapkv {task}"]("accuracy"))
            # A scorer that retained at random under another name would be noticed.
            for name in ("snapkv", "judge_q"):
                self.assertGreater(stored[f"{name} {task}"]("accuracy"), random("accuracy_high"))
        self.assertGreater(rows["snapkv multi_key"]("accuracy_low"), rows["random multi_key"]("accuracy_high"))
        again = self.evaluate(*words)  # existing results are not computed again
        self.assertEqual((again.err, again.out), ("", done.out))

    def test_the_models_of_the_qwen3_family_answer_as_their_trainer_counted(self):
        for name in ("tasks-qwen3-6x256", "tasks-smooth-6x256"):
            model = MODELS / "tiny" / name
            counted = json.loads(model.with_suffix(".recipe.json").read_text())["phases"][-1]["test"]
            done = self.evaluate("full", "--tasks=old_result,question_first", "--questions=32", "--per-session=4",
                                 f"--set=model.name={model}.textproto", f"--set=cpu.checkpoint={model}",
                                 "--set=limits.prefix_cache=true", f"--out={name}", "--format=csv", "--quiet")
            rows = cells(done.out)
            for task in ("old_result", "question_first"):
                with self.subTest(name, task=task):
                    full = rows[f"full {task}"]
                    right = counted[task]["right"] / counted[task]["asked"]
                    self.assertEqual(full("answered"), 32)
                    self.assertGreaterEqual(full("accuracy"), 0.9)
                    self.assertLessEqual(full("accuracy_low"), right)
                    self.assertLessEqual(right, full("accuracy_high"))

    def test_shards_processes_a_batch_backends_and_collected_folders_give_the_same_rows(self):
        for out, shard in (("parts", "1/2"), ("parts", "0/2"), ("whole", "0/1")):
            printed = self.evaluate("full knorm", *FEW, f"--out={out}", f"--shard={shard}").out
            if shard == "0/2":
                parts = printed
        self.assertEqual(printed, parts)
        self.check_same_files("whole", "parts", "quality.csv", "quality.json")
        whole = self.cells_in("whole")

        self.evaluate("full knorm", *FEW, "--out=lanes", "--backend=cuda,cpu", "--jobs=1,2")
        lanes = self.cells_in("lanes")
        self.assertEqual(len(lanes), len(whole))
        for cell, row in lanes.items():
            self.assertEqual(row["answered"], row["questions"])
            if row["backend"] == "cpu":  # without a GPU the CPU computes everything
                self.assertEqual(row["samples"], whole[cell]["samples"])

        self.evaluate("full knorm", *FEW, "--out=jobs", "--jobs=3")
        self.check_same_files("whole", "jobs", "quality.csv")
        self.evaluate("full knorm", *FEW, "--out=batch", "--batch=2")
        for cell, row in self.cells_in("batch").items():
            self.assertEqual(row["samples"], whole[cell]["samples"])
            self.assertNotEqual(row["inputs"], whole[cell]["inputs"])
        self.evaluate("full", *FEW, "--out=full")
        both = self.kvtwin("evaluate", "--collect=full", "--collect=jobs", "--out=both", "--format=csv")
        self.assertEqual(cells(both.out), whole)

    def test_processes_inherit_this_ones_settings_and_each_combination_is_computed_once(self):
        done = self.evaluate("full knorm", *FEW[:-1], "--out=once", "--backend=cuda,cpu", "--jobs=1,2", "--seed=7",
                             "--batch=2", "--per-session=2", "--set=limits.step_tokens_max=768")
        self.assertEqual(done.err.count("\n"), 6, done.err)
        self.assertNotIn("ended with status", done.err)
        shards = [name.split(".")[0] for name in os.listdir("once/logs")]
        # A GPU shard is started exactly if a GPU computes.
        gpu = any(row["backend"] == "cuda" for row in self.cells_in("once").values())
        self.assertEqual(shards.count("0"), 1 if gpu else 0)
        # Without a GPU there are 2 x 4 shards: five, since that is coprime to six combinations.
        if not gpu:
            self.assertEqual(shards.count("1"), 5)

    def test_throughput_is_that_of_the_load_with_the_policy_set_at_the_same_fraction(self):
        request = "2026-01-01 00:00:00.0000000,4096,64\n"
        self.write("requests.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n" + 2 * request)
        self.write("load.textproto",
                   'model { name: "llama-3.1-8b" } hardware { node: "h200" } memory { page_tokens: 32 }\n'
                   "policies { retrieval_options { sink_tokens: 64 window_tokens: 128 } }\n"
                   'trace { path: "requests.csv" format: "azure" } replay { arrivals: "all_at_once" }\n')
        done = self.evaluate("full knorm quest random triaxial", "--tasks=needle", "--budgets=32,64", "--questions=4",
                             "--tokens=128", "--jobs=2", "--quiet", "--out=q", "--throughput=load.textproto")
        speed = {}
        for row in rows_of(self.read("q/quality.csv")):
            tags = row["policy"] == "triaxial"  # its bits depend on tags, which the load lacks
            self.assertEqual(row["simulated_load"], "" if tags else "load")
            speed[row["policy"], row["budget"]] = 0 if tags else float(row["simulated_tokens_per_s"])
        self.assertEqual(len(speed), 8)
        self.assertGreater(speed["knorm", "32"], speed["knorm", "64"])
        self.assertGreater(speed["knorm", "64"], speed["full", "0"])
        self.assertGreater(speed["quest", "32"], speed["quest", "64"])
        # A quarter of 4,096 tokens, in whole pages where pages are selected.
        simulated = [file.read_text() for file in (self.folder / "q/throughput").glob("*/scenario.textproto")]
        for policy, field in (("knorm", "kv_entries: 1024"), ("quest", "budget_tokens: 1024")):
            self.assertTrue(any(f'name: "{policy}_on_load"' in text and field in text for text in simulated))
        # Rows of another evaluation, whose policy sets are in another folder; the same simulations are found again.
        again = self.kvtwin("evaluate", "--collect=q/quality.csv", f"--sets-in={QUALITY}",
                            "--throughput=load.textproto", "--out=q")
        self.assertIn("triaxial: ", again.err)
        self.assertEqual(again.out, done.out)

    def test_bytes_are_those_of_all_heads_also_where_heads_have_their_own_pages(self):
        rows = cells(self.evaluate("full adakv", "--tasks=needle", "--budgets=32", "--questions=2", "--tokens=128",
                                   "--out=bytes", "--format=csv", "--quiet").out)
        adakv = rows["adakv needle"]
        self.assertNear(adakv("kv_bytes_mean"), adakv("kv_fraction") * rows["full needle"]("kv_bytes_mean"), 1e-5)

    def test_bytes_count_both_formats_and_exact_tokens_next_to_packed_pages(self):
        rows = cells(self.evaluate("full int4 kivi triaxial_newest int2", "--tasks=newest_result", "--questions=2",
                                   "--per-session=2", "--tokens=512", "--out=bytes", "--format=csv", "--quiet").out)
        size = {cell.split()[0]: row("kv_bytes_mean") for cell, row in rows.items()}
        # Per head and token 256 bytes in bf16, 80 in 4 bits, 48 in 2 (docs/design/methods/triaxialkv.md#bytes);
        # KIVI stores 32 tokens in bf16.
        self.assertNear(size["int4"], size["full"] * 80 / 256, 1e-5)
        self.assertNear(size["kivi"], size["full"] * 48 / 256 + 32 * 24 * 256, 1e-5)
        self.assertGreaterEqual(size["int2"], size["full"] * 48 / 256)
        self.assertLess(size["int2"], size["triaxial_newest"])
        self.assertLess(size["triaxial_newest"], size["int4"])

    def test_only_the_checkpoint_in_a_checkpoints_folder_is_an_input_in_any_place(self):
        for place in ("copy", "elsewhere"):
            os.makedirs(f"{place}/tiny")
            shutil.copy(QUALITY / "full.textproto", place)
            shutil.copy(MODELS / "tiny/tasks-6x256.textproto", f"{place}/model.textproto")
            for part in ("config.json", "model.safetensors"):
                shutil.copy(MODELS / "tiny/tasks-6x256" / part, f"{place}/tiny")

        def inputs(place, out):
            path = self.folder / place
            done = self.kvtwin("evaluate", path / "full.textproto", "--tasks=needle", "--questions=2", "--tokens=128",
                               f"--set=model.name={path}/model.textproto", f"--set=cpu.checkpoint={path}/tiny",
                               f"--out={out}", "--format=csv", "--quiet")
            return cells(done.out)["full needle"]["inputs"]

        before = inputs("elsewhere", "before")
        self.assertEqual(inputs("copy", "there"), before)
        self.write("copy/tiny/judge_q.safetensors", "learned since")
        self.assertEqual(inputs("copy", "after"), before)
        with open("copy/tiny/config.json", "a") as config:
            config.write(" ")
        self.assertNotEqual(inputs("copy", "changed"), before)

    def test_a_refused_policy_set_is_a_row(self):
        refused = self.evaluate("full snapkv", "--out=q", "--tasks=needle", "--budgets=4", "--questions=2", status=1)
        self.assertIn("snapkv: ", refused.out)
        rows = json.loads(self.read("q/quality.json"))
        self.assertTrue(any(row["refused"] and row["accuracy"] is None for row in rows))
        other = self.evaluate("full", "--out=r", "--tasks=needle", "--questions=2", "--set=cpu.checkpoint=",
                              f"--set=model.name={MODELS}/tiny/llama-4x256.textproto", status=2)
        self.assertIn("vocabulary of 512", other.out)  # no question was answered


main()
