"""Correct answers from retained KV."""

from __future__ import annotations

import os
import re
import tempfile
from typing import Mapping, Optional, Sequence, Union

from . import _core
from ._errors import error
from ._results import Scorer, Table
from ._scenario import Settings, sets_of

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


class Evaluation(Table):
    """Columns of ``quality.csv``, one row per policy set, budget and task: ``policy``, ``task``, ``budget``, ``questions``,
    ``right``, ``accuracy`` and its 95 % interval, and more. ``print(evaluation)`` shows the tool's table."""

    def __init__(self, csv: str, text: str) -> None:
        super().__init__(csv)
        self._text = text

    def __str__(self) -> str:
        return self._text


def evaluate(
    policies: "Sequence[Union[str, os.PathLike[str]]]" = (),
    *,
    tasks: Union[str, Sequence[str]],
    budgets: Sequence[int],
    scorers: Optional[Mapping[str, Scorer]] = None,
    set: Optional[Settings] = None,
    questions: int = 100,
    tokens: int = 384,
    per_session: int = 4,
    seed: int = 1,
    backend: str = "cpu",
    base: str = "quality/knorm",
    paired: str = "",
    out: "Union[str, os.PathLike[str], None]" = None,
) -> Evaluation:
    """Counts correct answers from retained KV, as ``kvtwin evaluate``, in this process.

    Args:
        policies: scenarios, a policy set each: ``["quality/full", "quality/snapkv"]``.
        tasks: ``"multi_key"``, or several (``kvtwin trace make-task --list``).
        budgets: KV entries per head.
        scorers: functions by name, as ``scorer`` of :func:`kvtwin.run`. Each is a policy set of its own: ``base`` with this
            function in place of its scorer, retained for the session alone.
        set: fields of every policy set.
        questions: the fewest questions of a cell.
        tokens: of a session.
        per_session: questions of a session.
        seed: of the tasks.
        backend: ``"cpu"`` or ``"cuda"``.
        base: the scenario of ``scorers``.
        paired: a policy's name; the printed table then compares the others with it, question by question (McNemar's test).
        out: a folder, in which a repeated evaluation finds the cells of ``policies``; cells of functions are computed each
            time. None: all are.

    Raises:
        Error: with the message of ``kvtwin evaluate``.
        Exception: what a scorer raises.
    """
    functions = dict(scorers or {})
    names = [os.path.splitext(os.path.basename(os.fspath(one)))[0] for one in policies]
    for name, function in functions.items():
        if not _NAME.fullmatch(name):
            raise error("scorers", f"has the name {name!r}", "letters, digits, -, _ and .")
        if not callable(function):
            raise error("scorers", f"{name} is {function!r}", "a function")
        if name in names:
            raise error("scorers", f'"{name}" is the name of a policy set, too', "another name")
    if not names and not functions:
        raise error("kvtwin.evaluate", "there is nothing to evaluate", "policies or scorers")
    with tempfile.TemporaryDirectory() as temporary:
        request = _core.EvaluateRequest()
        request.scenarios = [os.fspath(one) for one in policies]
        request.tasks = [tasks] if isinstance(tasks, str) else list(tasks)
        request.budgets, request.sets = [int(one) for one in budgets], sets_of(set)
        request.questions, request.tokens, request.per_session = questions, tokens, per_session
        request.seed, request.backends = seed, [backend]
        request.out = os.fspath(out) if out is not None else os.path.join(temporary, "policies")
        return Evaluation(*_core.evaluate(request, base, functions, os.path.join(temporary, "functions"), paired))
