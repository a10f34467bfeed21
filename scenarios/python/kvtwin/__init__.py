"""kvtwin: what a KV-cache policy does to LLM serving, predicted.

>>> import kvtwin
>>> result = kvtwin.run("coding_agents_small", set={"memory.gpu_pages": 16000})
>>> result["ttft_p99_ms"]                   # a metric, by its name in `kvtwin list metrics`
>>> result.requests["first_token_ns"]       # a NumPy array, one entry per request
>>> result.requests.to_pandas()             # the same table for pandas

The guide is docs/guides/python.md.
"""

from __future__ import annotations

from typing import List, NamedTuple

from . import _core

# Shipped models, scenarios and traces are found relative to this package.
_core.set_program_path(_core.__file__)

from ._errors import Error
from ._compare import Comparison, RunsComparison, compare
from ._evaluation import Evaluation, evaluate
from ._results import Result, Table, open_result, run
from ._scenario import to_textproto
from ._studies import Plan, Sweep, plan, program, sweep

#: The version of kvtwin.
__version__: str = _core.version


class Metric(NamedTuple):
    """A metric's name, its unit (empty for counts) and its definition."""

    name: str
    unit: str
    definition: str


class Field(NamedTuple):
    """A scenario's field: its path, its kind, its default and what it means."""

    path: str
    kind: str
    default: str
    meaning: str


def metrics() -> List[Metric]:
    """All metrics, as ``kvtwin list metrics``."""
    return [Metric(*one) for one in _core.metrics()]


def fields() -> List[Field]:
    """All fields of a scenario, as ``kvtwin list fields``."""
    return [Field(*one) for one in _core.fields()]


def scenarios() -> List[str]:
    """The names of the shipped scenarios."""
    return list(_core.shipped())


__all__ = [
    "Comparison", "Error", "Evaluation", "Field", "Metric", "Plan", "Result", "RunsComparison", "Sweep", "Table", "compare", "evaluate", "fields",
    "metrics", "open_result", "plan", "program", "run", "scenarios", "sweep", "to_textproto",
]
