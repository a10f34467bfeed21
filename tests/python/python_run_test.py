"""kvtwin.run against `kvtwin run`: the same decisions, files and messages."""

import ast
import glob
import inspect
import json
import os
import pickle
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import unittest

import support
import numpy as np

import kvtwin


class Run(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.result = kvtwin.run(support.SMALL, set={"memory.gpu_pages": 8000}, timeline=(0, 20))

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def test_files_equal_those_of_the_tool(self):
        support.tool("run", support.SMALL, "--set=memory.gpu_pages=8000", "--timeline=0..20",
                     "--out=" + self.path("tool"), "--quiet")
        self.result.save(self.path("module"))
        ours, theirs = support.files_of(self.path("module")), support.files_of(self.path("tool"))
        self.assertIn("run.binpb", theirs)
        self.assertEqual(sorted(ours), sorted(theirs))
        for name, content in theirs.items():
            self.assertEqual(ours[name], content, name)

    def test_metrics_equal_those_of_the_tool(self):
        text, _ = support.tool("run", support.SMALL, "--set=memory.gpu_pages=8000", "--no-write", "--format=json",
                               "--quiet")
        self.assertEqual(self.result.metrics, json.loads(text))
        self.assertEqual(self.result.digest, json.loads(text)["decisions"])

    def test_metric_names(self):
        listed, _ = support.tool("list", "metrics")
        names = [metric.name for metric in kvtwin.metrics()]
        self.assertEqual(names, [line.split()[0] for line in listed.splitlines()])
        self.assertTrue(set(self.result.metrics) <= set(names), set(self.result.metrics) - set(names))
        self.assertEqual(self.result["ttft_p99"], self.result["ttft_p99_ms"])
        self.assertIn("ttft_p99", self.result)
        self.assertNotIn("nonsense", self.result)
        with self.assertRaisesRegex(kvtwin.Error, 'there is no metric "ttft_p98"'):
            self.result["ttft_p98"]

    def test_another_run_differs(self):
        self.assertNotEqual(kvtwin.run(support.SMALL, set={"memory.gpu_pages": 7000}).digest,
                            self.result.digest)

    def test_repeats(self):
        again = kvtwin.run(support.SMALL, set={"memory": {"gpu_pages": np.int64(8000)}}, timeline="0..20")
        self.assertEqual(again.metrics, self.result.metrics)
        self.assertEqual(again.timeline, self.result.timeline)

    def test_requests(self):
        table = self.result.requests
        self.assertEqual(table.rows, self.result["requests"])
        first, ready = table["first_token_ns"], table["ready_ns"]
        self.assertEqual((first.dtype, first.shape), (np.dtype(np.int64), (table.rows,)))
        self.assertEqual(table["session"].dtype, np.dtype(object))
        ttft = (first - ready) / 1e6
        self.assertAlmostEqual(ttft.mean(), self.result["ttft_mean_ms"], places=6)
        parts = sum(table[name] for name in table if name.endswith("_ns")
                    and name not in ("ready_ns", "queued_ns", "admitted_ns", "first_token_ns", "finished_ns"))
        np.testing.assert_array_equal(parts, table["finished_ns"] - ready)
        with self.assertRaisesRegex(kvtwin.Error, 'there is no column "ttft"; one of: request, session'):
            table["ttft"]

    def test_pandas(self):
        if not support.has("pandas"):
            self.skipTest("there is no pandas (./dev test --python installs it)")
        frame = self.result.requests.to_pandas()
        self.assertEqual(len(frame), self.result["requests"])
        self.assertEqual(int(frame.output_tokens.sum()), self.result["output_tokens"])
        self.assertGreater(self.result.tools.rows, 0)
        self.assertEqual(list(self.result.tools.to_pandas().columns), list(self.result.tools))

    def test_timeline(self):
        events = self.result.timeline
        steps = [event for event in events if event.get("ph") == "X"]
        self.assertGreater(len(steps), 100)
        self.assertTrue(all(event["ts"] <= 20e6 for event in steps))
        self.assertEqual(kvtwin.run(support.SMALL, set={"replay.sessions_max": 1}).timeline, [])

    def test_open(self):
        self.result.save(self.path("saved"))
        opened = kvtwin.open_result(self.path("saved"))
        self.assertEqual(opened.metrics, self.result.metrics)
        np.testing.assert_array_equal(opened.requests["finished_ns"], self.result.requests["finished_ns"])
        with self.assertRaises(kvtwin.Error):
            kvtwin.open_result(self.path("nothing"))
        with self.assertRaises(kvtwin.Error):
            kvtwin.run(support.SMALL, seed=3).save(self.path("saved"))
        kvtwin.run(support.SMALL, seed=3).save(self.path("saved"), force=True)

    def test_resolved_scenario_repeats_the_run(self):
        path = self.path("resolved.textproto")
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.result.scenario_text)
        self.assertEqual(kvtwin.run(path).digest, self.result.digest)

    def test_a_dict_finds_shipped_traces_from_anywhere(self):
        fields = {"model": {"name": "llama-3.1-8b"}, "hardware": {"node": "h200"},
                  "trace": {"path": "traces/data/coding_agents_small.kvtrace", "format": "kvtwin"}}
        here = os.getcwd()
        os.chdir(self.folder.name)
        try:
            self.assertEqual(kvtwin.run(fields)["requests"], 617)
        finally:
            os.chdir(here)

    def test_scenario_of_a_dict(self):
        trace = os.path.join(support.SOURCE, "traces/data/coding_agents_small.kvtrace")
        fields = {
            "model": {"name": "llama-3.1-8b"},
            "hardware": {"node": "h200"},
            "memory": {"gpu_pages": 8000},
            "limits": {"capture_sizes": [1, 2, 4], "prefix_cache": None},
            "trace": {"path": trace, "format": "kvtwin"},
        }
        path = self.path("dict.textproto")
        with open(path, "w", encoding="utf-8") as file:
            file.write(kvtwin.to_textproto(fields))
        text, _ = support.tool("run", path, "--no-write", "--format=json", "--quiet")
        self.assertEqual(kvtwin.run(fields).digest, json.loads(text)["decisions"])
        self.assertIn('name: "llama', kvtwin.to_textproto(fields))
        self.assertEqual(kvtwin.to_textproto({"description": 'é"\\\n'}), 'description: "\\303\\251\\042\\134\\012"\n')
        with self.assertRaisesRegex(kvtwin.Error, r"^scenario:\d+:\d+: .*gpu_pags"):
            kvtwin.run({**fields, "memory": {"gpu_pags": 8000}})


class Errors(unittest.TestCase):
    # Arguments of the tool and of the module that are the same mistake.
    CASES = [
        (("nonsense.textproto",), {"scenario": "nonsense.textproto"}),
        (("coding_agents_smal",), {"scenario": "coding_agents_smal"}),
        ((support.SMALL, "--set=limits.nonsense=1"), {"set": {"limits.nonsense": 1}}),
        ((support.SMALL, "--set=limits.requests_max=-4"), {"set": {"limits.requests_max": -4}}),
        ((support.SMALL, "--set=model.name=gpt-9", "--set=hardware.node=h900"),
         {"set": {"model.name": "gpt-9", "hardware.node": "h900"}}),
        ((support.SMALL, "--set=replay.population=5"), {"set": {"replay.population": 5}}),
        ((support.SMALL, "--backend=tpu"), {"backend": "tpu"}),
        ((support.SMALL, "--timeline=5..1"), {"timeline": (5, 1)}),
    ]

    def test_messages_equal_those_of_the_tool(self):
        for words, arguments in self.CASES:
            with self.subTest(words):
                _, message = support.tool("run", *words, "--no-write", "--quiet", status=2)
                with self.assertRaises(kvtwin.Error) as raised:
                    kvtwin.run(**{"scenario": support.SMALL, **arguments})
                self.assertEqual(str(raised.exception) + "\n", message)
                self.assertTrue(raised.exception.what)
                self.assertEqual(pickle.loads(pickle.dumps(raised.exception)).errors, raised.exception.errors)

    def test_arguments(self):
        with self.assertRaisesRegex(kvtwin.Error, "scenario: is a int"):
            kvtwin.run(5)
        with self.assertRaisesRegex(kvtwin.Error, r"limits.requests_max: has the value \{1\} of type set"):
            kvtwin.run(support.SMALL, set={"limits.requests_max": {1}})


class Compare(unittest.TestCase):
    def test_two_runs_as_the_tool(self):
        slow, fast = kvtwin.run(support.SMALL, set={"memory.gpu_pages": 5000}), kvtwin.run(support.SMALL)
        with tempfile.TemporaryDirectory() as folder:
            slow.save(folder + "/slow"), fast.save(folder + "/fast")
            text, _ = support.tool("compare", folder + "/slow", folder + "/fast")
            columns, _ = support.tool("compare", folder + "/slow", folder + "/fast", "--format=csv")
            compared = kvtwin.compare(folder + "/slow", folder + "/fast/")
            self.assertEqual((compared.first, compared.second), (folder + "/slow", folder + "/fast"))
        self.assertEqual(str(compared), text)
        self.assertEqual(list(compared.rows[0]), columns.split("\n")[0].split(","))
        self.assertEqual([row["metric"] for row in compared.rows], [line.split(",")[0] for line in columns.splitlines()[1:]])
        self.assertEqual([one["field"] for one in compared.settings], ["memory.gpu_pages"])
        in_memory = kvtwin.compare(slow, fast, limits=["ttft_mean=0.001", "requests_finished=0.1"])
        self.assertEqual((in_memory.rows, in_memory.same_requests), (compared.rows, compared.same_requests))
        self.assertEqual(in_memory.same_requests["requests"], 617)
        self.assertEqual((in_memory.first, in_memory.second, in_memory.same_decisions), ("first", "second", False))
        self.assertEqual(len(in_memory.broken), 1)
        self.assertIn("ttft_mean_ms", in_memory.broken[0])
        same = kvtwin.compare(fast, fast)
        self.assertTrue(same.same_decisions)
        self.assertEqual({row["difference_percent"] for row in same.rows}, {0})
        with self.assertRaisesRegex(kvtwin.Error, "skip: leaves out requests of a log"):
            kvtwin.compare(fast, slow, skip=3)
        with self.assertRaisesRegex(kvtwin.Error, 'limit=nonsense=1: no metric "nonsense"'):
            kvtwin.compare(fast, slow, limits=["nonsense=1"])

    def test_a_request_log_as_the_tool(self):
        fast, slow = kvtwin.run(support.SMALL), kvtwin.run(support.SMALL, set={"memory.gpu_pages": 5000})
        with tempfile.TemporaryDirectory() as folder:
            fast.save(folder + "/fast"), slow.save(folder + "/slow")
            text, _ = support.tool("compare", folder + "/slow", folder + "/fast/requests.jsonl")
            compared = kvtwin.compare(folder + "/slow", folder + "/fast/requests.jsonl")
            in_memory = kvtwin.compare(slow, folder + "/fast/requests.jsonl", limits=["ttft.mean=0.001"])
            with self.assertRaisesRegex(kvtwin.Error, "requests.jsonl: is no folder of a run"):
                kvtwin.compare(folder + "/fast/requests.jsonl", slow)
        self.assertEqual(str(compared), text)
        self.assertEqual(in_memory.rows, compared.rows)
        self.assertEqual((in_memory.requests, in_memory.matched_by), (617, "id"))
        self.assertEqual(len(in_memory.broken), 1)
        with self.assertRaisesRegex(kvtwin.Error, "nowhere.jsonl: cannot be read"):
            kvtwin.compare(fast, "nowhere.jsonl")


class Threads(unittest.TestCase):
    def test_other_threads_go_on(self):
        counted = 0
        ended = threading.Event()

        def run():
            try:
                kvtwin.run(support.SMALL, set={"memory.gpu_pages": 5000})
            finally:
                ended.set()

        thread = threading.Thread(target=run)
        thread.start()
        while not ended.is_set():
            counted += 1
            time.sleep(0.001)
        thread.join()
        # With the GIL held, this thread would get on only before and after the run.
        self.assertGreater(counted, 20)

    def test_runs_of_threads_follow_one_another(self):
        def digest_of(sessions):
            return kvtwin.run(support.SMALL, set={"replay.sessions_max": sessions}).digest

        digests = [None] * 4
        expected = [digest_of(5 + i) for i in range(4)]
        self.assertEqual(len(set(expected)), 4)

        def run(i):
            digests[i] = digest_of(5 + i)

        threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(digests, expected)

    def test_a_forked_process_gets_an_error(self):
        kvtwin.run(support.SMALL, set={"replay.sessions_max": 1})
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                kvtwin.run(support.SMALL)
            except kvtwin.Error as problem:
                os.write(write, str(problem).encode())
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as end:
            self.assertIn("was forked", end.read())
        os.waitpid(child, 0)

    def test_interrupt(self):
        script = ("import kvtwin, os, signal, threading\n"
                  "threading.Timer(0.6, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
                  "try:\n"
                  "    while True: kvtwin.run('coding_agents_small', set={'memory.gpu_pages': 5000})\n"
                  "except KeyboardInterrupt: print('interrupted')\n"
                  "print(kvtwin.run('coding_agents_small').digest)\n")
        ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
        self.assertEqual(ran.stdout.split(), ["interrupted", kvtwin.run(support.SMALL).digest])


class Backends(unittest.TestCase):
    def test_cpu(self):
        arguments = ["--backend=cpu", "--clock=virtual", "--set=replay.sessions_max=2"]
        scenario = os.path.join(support.SOURCE, "scenarios/methods/tiny")
        name = "methods/tiny/" + sorted(os.listdir(scenario))[0].removesuffix(".textproto")
        text, _ = support.tool("run", name, *arguments, "--no-write", "--format=json", "--quiet")
        ours = kvtwin.run(name, backend="cpu", clock="virtual", set={"replay.sessions_max": 2})
        self.assertEqual(ours.metrics, json.loads(text))


class Documented(unittest.TestCase):
    def test_everything_public_has_a_docstring_and_types(self):
        for name in kvtwin.__all__:
            thing = getattr(kvtwin, name)
            self.assertTrue(inspect.getdoc(thing), name)
            if inspect.isclass(thing):
                for member, value in vars(thing).items():
                    function = value.fget if isinstance(value, property) else value
                    if not inspect.isfunction(function) or member.startswith("_"):
                        continue
                    self.assertTrue(inspect.getdoc(value), f"{name}.{member}")
                    self.assertIn("return", function.__annotations__, f"{name}.{member}")
            else:
                self.assertIn("return", thing.__annotations__, name)
                for argument in inspect.signature(thing).parameters:
                    self.assertIn(argument, thing.__annotations__, f"{name}({argument})")

    def test_the_stub_names_what_the_module_has(self):
        from kvtwin import _core
        folder = os.path.join(support.SOURCE, "scenarios/python/kvtwin")
        with open(os.path.join(folder, "_core.pyi"), encoding="utf-8") as file:
            stub = ast.parse(file.read())
        named = {node.name for node in stub.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
        self.assertEqual(named, {name for name in vars(_core) if not name.startswith("__")} - {"version"})
        for node in stub.body:
            if isinstance(node, ast.ClassDef):
                members = {part.target.id for part in node.body if isinstance(part, ast.AnnAssign)}
                members |= {part.name for part in node.body if isinstance(part, ast.FunctionDef)}
                has = {name for name in vars(getattr(_core, node.name)) if not name.startswith("_")}
                self.assertEqual(members, has, node.name)
        self.assertTrue(glob.glob(os.path.join(folder, "py.typed")))


TINY = "scenarios/methods/tiny/adakv.textproto"  # scores decide counts, so the digest depends on them


def long_values(layer, positions, keys, values, queries):
    assert isinstance(layer, int) and positions.dtype == np.int64 and queries.dtype == np.float32
    assert keys.shape == values.shape and keys.shape[:2] == positions.shape
    return np.linalg.norm(values, axis=-1)


class FunctionScorer(unittest.TestCase):
    """A function scores what the program of the guide scores."""

    def run_with(self, scorer, **more):
        return kvtwin.run(TINY, backend="cpu", clock="virtual", scorer=scorer, **more)

    def test_decides_what_the_program_decides(self):
        program = f"{sys.executable} docs/guides/examples/long_values.py"
        by_program = kvtwin.run(TINY, {"policies.scorer": "external", "policies.scorer_options.command": program},
                                backend="cpu", clock="virtual")
        by_function = self.run_with(long_values)
        self.assertEqual(by_function.digest, by_program.digest)
        self.assertNotEqual(by_function.digest, self.run_with(lambda l, p, k, v, q: -long_values(l, p, k, v, q)).digest)
        self.assertEqual(by_function.metrics["ttft_p99_ms"], by_program.metrics["ttft_p99_ms"])

    def test_its_exception_ends_the_run_and_only_the_run(self):
        def broken(*arrays):
            raise KeyError("mine")

        try:
            self.run_with(broken)
        except KeyError as error:
            self.assertEqual(error.args, ("mine",))
            self.assertEqual(traceback.extract_tb(error.__traceback__)[-1].name, "broken")
        else:
            self.fail("no exception")
        self.assertEqual(self.run_with(long_values).digest, self.run_with(long_values).digest)

    def test_other_answers_are_refused(self):
        for answer, what in ((np.zeros(3), "an array of shape \\(3\\)"), ("x", "no array of numbers"),
                             (float("nan"), "shape")):
            with self.assertRaisesRegex(ValueError, what):
                self.run_with(lambda *arrays: answer)
        with self.assertRaisesRegex(ValueError, "head 0, entry 0 is no number"):
            self.run_with(lambda l, p, k, v, q: np.full(k.shape[:2], np.nan))

    def test_it_is_refused_where_nothing_would_call_it(self):
        with self.assertRaisesRegex(kvtwin.Error, "not called by backend sim"):
            kvtwin.run(TINY, scorer=long_values)
        with self.assertRaisesRegex(kvtwin.Error, "policies.scorer is not read where policies.budget is all"):
            kvtwin.run("search_tiny", {"policies.identity": "none"}, backend="cpu", clock="virtual", scorer=long_values)
        with self.assertRaisesRegex(kvtwin.Error, "a function"):
            kvtwin.run(TINY, backend="cpu", scorer="knorm")

    def test_it_cannot_make_a_run_itself(self):
        with self.assertRaisesRegex(kvtwin.Error, "by a scorer of a run that is not over"):
            self.run_with(lambda *arrays: self.run_with(long_values))

    def test_it_is_evaluated(self):
        made = kvtwin.evaluate(["quality/full", "quality/knorm"], tasks="multi_key", budgets=[32], questions=8,
                               scorers={"short_keys": lambda l, p, k, v, q: -np.linalg.norm(k, axis=-1)}, paired="full")
        self.assertEqual(list(made["policy"]), ["full", "knorm", "short_keys"])
        # Knorm's own scores.
        self.assertEqual(made["right"][1], made["right"][2])
        self.assertGreater(made["right"][0], made["right"][2])
        self.assertIn("short_keys", str(made))
        self.assertIn("paired with full", str(made))
        with self.assertRaisesRegex(ZeroDivisionError, "division"):
            kvtwin.evaluate(tasks="multi_key", budgets=[32], questions=4, scorers={"broken": lambda *arrays: 1 / 0})
        for wrong in ({"a/b": len}, {"x": "knorm"}):
            with self.assertRaises(kvtwin.Error):
                kvtwin.evaluate(tasks="multi_key", budgets=[32], scorers=wrong)

    def test_a_program_that_fails_raises(self):
        with self.assertRaisesRegex(RuntimeError, 'command "false": it ended'):
            kvtwin.run(TINY, {"policies.scorer": "external", "policies.scorer_options.command": "false"}, backend="cpu",
                       clock="virtual")

    def test_a_name_without_a_function_is_an_error(self):
        with self.assertRaisesRegex(kvtwin.Error, 'this process has no scorer for "in-process f"'):
            kvtwin.run(TINY, {"policies.scorer": "external", "policies.scorer_options.command": "in-process f"},
                       backend="cpu")

if __name__ == "__main__":
    support.main()
