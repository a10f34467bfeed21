#!/usr/bin/python3
"""reports/evidence/quality/second computes what the CPU engine computes: the same answers, question by question, and loss.

  quality_second_check.py KVTWIN
"""

import json
import pathlib
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(__file__).resolve().parents[2]
SECOND = SOURCE / "reports/evidence/quality/second"
sys.path.insert(0, str(SECOND))

try:
    import numpy  # noqa: F401
except ImportError:
    print("skipped: there is no numpy (Debian: python3-numpy)")
    sys.exit(77)

import compressed_once
import intentkv
import tiny

TOOL = sys.argv[1]


def engine(policy, task, questions, per_session, *options):
    """The cell of one evaluation of 384 tokens a session."""
    with tempfile.TemporaryDirectory() as out:
        subprocess.run([TOOL, "evaluate", SOURCE / f"scenarios/quality/{policy}.textproto", f"--tasks={task}", "--quiet",
                        f"--questions={questions}", f"--per-session={per_session}", f"--out={out}", *options],
                       check=True, stdout=subprocess.DEVNULL)
        return json.loads(next(pathlib.Path(out).glob("cells/*.json")).read_text())


def check_forward(name, task):
    """`task` has wrong answers, so that equality says something."""
    model = SOURCE / "models/tiny" / name
    cell = engine("full", task, 8, 2, f"--set=model.name={model}.textproto", f"--set=cpu.checkpoint={model}")
    said = subprocess.run([sys.executable, SECOND / "tiny.py", TOOL, model, task, "384", "2", "4"], check=True,
                          stdout=subprocess.PIPE).stdout
    second = json.loads(said)
    assert second["asked"] == cell["questions"] == 8, (name, second)
    assert second["correct_by_question"] == cell["correct_by_question"], (name, second, cell)
    assert abs(second["token_loss"] / cell["token_loss"] - 1) < 1e-3, (name, second, cell)


def check_intentkv(policy, mode, task="refined_goal", drop_turns=False):
    model = tiny.Model(SOURCE / "models/tiny/tasks-6x256")
    head = intentkv.Residual(SOURCE / "models/tiny/tasks-6x256/intent_residual.safetensors")
    right = [one for ids, spans in tiny.sessions(TOOL, task, 384, 12, 2)
             for one in intentkv.ask(model, ids, spans, mode, 64, head, drop_turns=drop_turns)]
    cell = engine(policy, task, len(right), 12, "--budgets=64", *(["--drop-turns"] if drop_turns else []))
    answers = "".join(str(int(one)) for one in right)
    assert len(answers) >= 16 and len(set(answers)) == 2, (task, answers)
    assert answers == cell["correct_by_question"], (mode, task, answers, cell)


def check_kvzip():
    """A document is compressed once, six questions come later."""
    model, right = tiny.Model(SOURCE / "models/tiny/tasks-6x256"), []
    for ids, spans in tiny.sessions(TOOL, "multi_key", 426, 6, 2):
        cache = tiny.Cache(model, 400)
        model.run(model.embed(ids[:compressed_once.DOCUMENT]), cache)
        right += compressed_once.as_engine(model, cache, ids, spans, 32)
    cell = engine("kvzip", "multi_key", 12, 6, "--budgets=32", "--tokens=426", "--drop-turns", "--allow-unread",
                  "--set=limits.prefix_cache=true", "--set=policies.identity=session")
    answers = "".join(str(int(one)) for one in right)
    assert len(set(answers)) == 2 and answers == cell["correct_by_question"], (answers, cell)


check_forward("tasks-6x256", "long_list")
check_forward("tasks-smooth-6x256", "long_list")
check_intentkv("intentkv", "unit")
check_intentkv("intent_residual", "residual")
check_intentkv("intentkv", "unit", drop_turns=True)
check_intentkv("intentkv_max", "max", "asked_again", drop_turns=True)
check_kvzip()
print("equal")
