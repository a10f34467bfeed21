#!/usr/bin/env python3
"""kvtwin explain: one step, operation by operation."""

import collections
import itertools
import re

from program import METHOD_DIR, SOURCE, CommandLine, main


def line_ms(table, name):
    """The millisecond figure after `name` in a table; -1 if absent."""
    found = re.search(rf"  {name} *([\d.]+)", table)
    return float(found.group(1)) if found else -1


def total(rows, figure="duration_ns"):
    return sum(float(row[figure]) for row in rows)


class Explain(CommandLine):
    def explain(self, method, *more, **how):
        return self.kvtwin("explain", METHOD_DIR / f"{method}.textproto", *more, **how)

    def test_all_reduces_are_operations_of_their_own_measured_or_marked_as_assumed(self):
        for node, mark in (
                ("h200-x8", "all-reduce is        measured with 2 GPUs: 240 GB/s and 11.5 us each"),
                ("h100-x8", "all-reduce is        ASSUMED: 297 GB/s and 16.7 us each (0.66 of NVLink)")):
            words = ("dense", f"--set=hardware.node={node}", "--set=engines.tensor_parallel=2",
                     "--shape=decodes=8,context=4096")
            self.assertIn(mark, self.explain(*words).out)
            rows = self.explain(*words, "--format=csv").rows
            # One of each layer, one of the logits.
            self.assertEqual(sum(row["operation"] == "all-reduce" for row in rows), 33)
            self.assertNear(total(rows), max(float(row["start_ns"]) + float(row["duration_ns"]) for row in rows), 1e-6)
        self.assertNotIn("all-reduce", self.explain("dense", "--shape=decodes=8,context=4096").out)

    def test_a_retrieving_steps_operations_fill_it_and_its_critical_path_has_its_length(self):
        shape = "--shape=decodes=4,context=32768"
        for method in ("arkvale", "freekv", "shadowkv", "infinigen", "quest", "dense"):
            with self.subTest(method):
                table = self.explain(method, shape).out
                rows = self.explain(method, shape, "--format=csv").rows
                computes = [row for row in rows if row["stream"] == "compute"]
                stalled = total(computes, "stalled_ns")
                path = total(row for row in rows if row["critical"] == "true")
                step = line_ms(table, "step")
                self.assertNear((total(computes) + stalled) / 1e6, step, 1e-4)
                self.assertTrue(0 < path / 1e6 <= step * 1.0001, path)
                self.assertTrue(all(row["happens"] == "true" or row["predicated"] == "true" for row in rows))
                recalls = total(row for row in rows if row["operation"] == "recall")
                self.assertEqual(recalls > 0, method not in ("dense", "quest"))
                # Exposed time is a part of the computing stream's waiting time.
                self.assertLessEqual(line_ms(table, "transfers, exposed"), stalled / 1e6 + 1e-3)

    def test_the_prices_of_operations_fill_the_step_and_name_what_a_method_adds(self):
        profile = SOURCE / "models/measured/h200.textproto"
        for method, shape, adds, rest in (
                ("dense", "decodes=4,context=4096", set(), 0),
                ("quest", "decodes=4,context=32768",  # two layers read everything
                 {"choice in a layer", "choice of a request in a layer", "page of a head scored"}, 0.03),
                ("snapkv", "chunks=1,chunk_tokens=1024,chunk_context=3000,compress=1",
                 {"compression", "layer of scores by attention"}, 0)):
            with self.subTest(method):
                table = self.explain(method, f"--shape={shape}", "--set=hardware.node=h200",
                                     f"--set=cost.profile={profile}").out
                prices = {line[2:42].strip(): line[42:].split() for line in
                          table.split("  price of ")[1].splitlines()[1:] if line}
                more = prices.pop("rest: layers that read all, recalls", ["0", "0"])
                step = line_ms(table, "step")
                self.assertAlmostEqual(float(more[0]) / step, rest, delta=0.01)
                self.assertNear(sum(float(price[2]) for price in prices.values()) + float(more[0]), step, 2e-3)
                self.assertNear(sum(float(price[3]) for price in prices.values()) + float(more[1]), 100, 2e-3)
                self.assertLessEqual(adds, set(prices))

    def test_a_step_prices_all_that_the_cuda_engine_starts(self):
        for scenario, shape, golden in (
                ("dense", "decodes=4,context=4096", "dense_decode"),
                ("dense", "decodes=4,context=4096,chunks=1,chunk_tokens=512", "dense_mixed"),
                ("quest", "decodes=4,context=32768", "quest_fills"),
                ("freekv", "decodes=4,context=32768", "freekv_fills"),
                ("arkvale", "decodes=4,context=32768", "arkvale_fills"),
                ("tiny/snapkv", "chunks=1,chunk_tokens=512,compress=1", "snapkv_captures"),
                ("tiny/intentkv", "chunks=1,chunk_tokens=512,compress=1", "intentkv_compresses"),
                ("tiny/tangram", "chunks=1,chunk_tokens=512,compress=1", "tangram_compresses"),
                ("tiny/triaxial", "decodes=4,context=512", "triaxial_decode")):
            with self.subTest(golden):
                priced = collections.defaultdict(set)  # by layer, "" outside of layers
                for row in self.explain(scenario, f"--shape={shape}", "--format=csv").rows:
                    priced[row["layer"]].update(name.strip() for name in row["starts"].split(";"))
                found = 0
                for line in (SOURCE / f"tests/golden/operations/{golden}.txt").read_text().splitlines():
                    # "stream: name[layer] after ... records ..."
                    name, layer = re.match(r".*?: (.*?)(?:\[(\d).*| after.*| records.*|)$", line).groups()
                    if layer not in (None, "1"):
                        continue
                    # A layer that retrieves: the first ones of a scenario may be dense.
                    there = "" if layer is None else layer if scenario.startswith("tiny") else "8"
                    self.assertIn(name, priced[there], f"layer {layer}")
                    found += 1
                self.assertGreater(found, 10)

    def test_the_explained_steps_of_a_run_sum_to_the_runs_time(self):
        self.write("t.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-01-01 00:00:00.000000,3000,4\n")
        few = ("--set=replay.sessions_max=1", f"--set=trace.path={self.folder}/t.csv")
        ran = self.kvtwin("run", METHOD_DIR / "freekv.textproto", "--no-write", "--quiet", "--format=jsonl", *few).json
        took_ms = 0
        for steps in itertools.count():
            one = self.explain("freekv", f"--step={steps}", *few, status=None)
            if one.status != 0:
                self.assertIn(f"the run has no step {steps}", one.err)
                self.assertIn(f"its last is {steps - 1}", one.err)
                break
            took_ms += line_ms(one.out, "step")
        self.assertGreater(steps, 3)
        self.assertNear(took_ms, 1e3 * ran["elapsed_s"], 1e-4)

    def test_a_compressions_operations_are_part_of_the_step_by_scorer(self):
        shape = "--shape=decodes=2,context=20000,chunks=1,chunk_tokens=2048,chunk_context=14336"
        for method, has, lacks in (
                ("snapkv", "score select compact host", "probe capture"),
                ("judge_q", "probe score select compact host", "capture"),
                ("kvzip", "probe score select compact host", "capture"),
                ("tangram", "capture score select compact", "probe"),
                ("tangram_released", "capture score select compact host", "probe"),
                ("intentkv_slots", "score select host", "probe capture compact")):
            with self.subTest(method):
                took, step_ms = [], []
                for asked in (shape, shape + ",compress=1"):
                    by_operation = collections.Counter()
                    for row in self.explain(method, asked, "--format=csv").rows:
                        if row["happens"] == "true":
                            by_operation[row["operation"]] += float(row["duration_ns"])
                    took.append(by_operation)
                    step_ms.append(line_ms(self.explain(method, asked).out, "step"))
                without, with_it = took
                more = sum(with_it[name] for name in ("probe", "score", "select", "compact", "host"))
                self.assertNear(step_ms[1] - step_ms[0], more / 1e6, 1e-2)
                self.assertEqual([name for name in has.split() if with_it[name] <= 0], [])
                self.assertEqual([name for name in lacks.split() if with_it[name] != 0], [])
                self.assertEqual([name for name in ("probe", "score", "select", "compact") if without[name] != 0], [])
                self.assertNear(without["capture"], with_it["capture"], 1e-5)

    def test_the_graph_has_a_cluster_for_each_stream_and_the_same_bytes_every_time(self):
        for out in ("a.dot", "b.dot"):
            self.explain("freekv", "--step=20", "--layers=0..1", f"--out={out}")
        dot = self.read("a.dot")
        self.assertEqual(dot, self.read("b.dot"))
        for part in ("digraph step {", 'label="compute"', 'label="h2d"', "recall[1]", "color=red", "dashed",
                     "recall_done[0]\\nof the previous step", "recall_done[0]\\nfor the next step"):
            self.assertIn(part, dot)
        self.assertNotIn("attention[2]", dot)  # not requested


main()
