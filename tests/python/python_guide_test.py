"""The code of docs/guides/python.md, of its notebook and of the Dask example: executed, and compared with what they show.

Usage: python_guide_test.py [--write]    --write puts the outputs of this run into the notebook
"""

import ast
import contextlib
import doctest
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

import support

GUIDES = os.path.join(support.SOURCE, "docs/guides")
NOTEBOOK = os.path.join(GUIDES, "python.ipynb")


def read(name):
    with open(os.path.join(GUIDES, name), encoding="utf-8") as file:
        return file.read()


@contextlib.contextmanager
def scratch():
    """A working directory with the traces of the repository."""
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.symlink(os.path.join(support.SOURCE, "traces"), os.path.join(folder, "traces"))
        os.chdir(folder)
        try:
            yield folder
        finally:
            os.chdir(before)


def outputs_of(source, names):
    """What a cell prints, and the value of its last expression, as Jupyter stores them."""
    body = ast.parse(source).body
    last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(ast.Module(body, []), "<cell>", "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)
    outputs = []
    if printed.getvalue():
        outputs.append({"name": "stdout", "output_type": "stream", "text": printed.getvalue().splitlines(True)})
    if value is not None:
        outputs.append({"data": {"text/plain": repr(value).splitlines(True)}, "metadata": {},
                        "output_type": "execute_result"})
    return outputs


def text_of(outputs):
    parts = []
    for output in outputs:
        parts += output["text"] if output["output_type"] == "stream" else output["data"]["text/plain"]
    return "".join(parts)


def execute(notebook):
    """The outputs of each code cell, in order."""
    names = {"__name__": "__main__"}
    with scratch():
        return [outputs_of("".join(cell["source"]), names)
                for cell in notebook["cells"] if cell["cell_type"] == "code"]


class Guide(unittest.TestCase):
    def test_page(self):
        self.check_page("python.md", 5, 15)

    def test_page_of_scorers(self):
        self.check_page("a-scorer-in-python.md", 0, 3)

    def check_page(self, page, more_blocks_than, more_lines_than):
        blocks = re.findall(r"^```pycon\n(.*?)^```", read(page), re.M | re.S)
        self.assertGreater(len(blocks), more_blocks_than)
        parser, names = doctest.DocTestParser(), {}
        runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
        messages = io.StringIO()
        with scratch():
            for i, block in enumerate(blocks):
                test = parser.get_doctest(block, names, f"block {i}", page, 0)
                runner.run(test, out=messages.write, clear_globs=False)
                names = test.globs
        self.assertEqual(runner.failures, 0, messages.getvalue())
        self.assertGreater(runner.tries, more_lines_than)

    def test_notebook(self):
        if not support.has("pandas"):
            self.skipTest("there is no pandas (./dev test --python installs it)")
        notebook = json.loads(read("python.ipynb"))
        cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
        self.assertGreater(len(cells), 4)
        for i, (cell, outputs) in enumerate(zip(cells, execute(notebook))):
            self.assertEqual(text_of(cell["outputs"]), text_of(outputs), "".join(cell["source"]))
            self.assertEqual(cell["execution_count"], i + 1)

    def test_dask_example(self):
        if not support.has("distributed"):
            self.skipTest("there is no Dask (./dev test --python installs it)")
        page = read("sweeps-on-a-cluster.md")
        program = re.search(r"^```python\n(.*?)^```", page, re.M | re.S)[1]
        shown = re.search(r"^```text\n(.*?)^```", page, re.M | re.S)[1]
        with scratch():
            with open("dask_study.py", "w", encoding="utf-8") as file:
                file.write(program)
            ran = subprocess.run([sys.executable, "dask_study.py"], capture_output=True, text=True, check=False,
                                 timeout=200)
        self.assertEqual(ran.stdout, shown, ran.stderr)


def write():
    notebook = json.loads(read("python.ipynb"))
    outputs = iter(execute(notebook))
    count = 0
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            count += 1
            cell["execution_count"], cell["outputs"] = count, next(outputs)
            for output in cell["outputs"]:
                if output["output_type"] == "execute_result":
                    output["execution_count"] = count
    with open(NOTEBOOK, "w", encoding="utf-8") as file:
        json.dump(notebook, file, indent=1, ensure_ascii=False, sort_keys=True)
        file.write("\n")


if __name__ == "__main__":
    write() if sys.argv[1:] == ["--write"] else support.main()
