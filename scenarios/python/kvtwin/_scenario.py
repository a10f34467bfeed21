"""Scenarios, settings and axes as the tool reads them: text."""

from __future__ import annotations

import os
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from . import _core
from ._errors import error

Value = Union[str, int, float, bool]
#: A path of a scenario file, the name of a shipped scenario, or its fields as nested dictionaries.
Scenario = Union[str, "os.PathLike[str]", Mapping[str, Any]]
#: ``{"limits.requests_max": 64}``, or ``{"limits": {"requests_max": 64}}``.
Settings = Mapping[str, Any]
#: ``{"limits.requests_max": [16, 32]}``, or a range in the syntax of ``--vary``: ``{"limits.requests_max": "4..64*2"}``.
Axes = Mapping[str, Union[str, Sequence[Value]]]


def _word(where: str, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, int, float)):
        return str(value)
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:  # a NumPy scalar
        return _word(where, value.item())
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise error(where, f"has the value {value!r} of type {type(value).__name__}", "a text, a number or a bool")


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple)) or getattr(value, "ndim", None) == 1


def sets_of(settings: Optional[Settings], prefix: str = "") -> List[str]:
    """``field.path=value`` for each setting, in order."""
    if settings is not None and not isinstance(settings, Mapping):
        raise error("set", f"is a {type(settings).__name__}", 'a dict: {"limits.requests_max": 64}')
    sets: List[str] = []
    for name, value in (settings or {}).items():
        path = prefix + name
        if isinstance(value, Mapping):
            sets += sets_of(value, path + ".")
        elif _is_list(value):
            if not _core.is_list(path):
                raise error(path, f"is {value!r}", "it takes one value; kvtwin.sweep(vary=...) takes several")
            sets.append(path + "=" + ",".join(_word(path, one) for one in value))
        else:
            sets.append(f"{path}={_word(path, value)}")
    return sets


def axes_of(vary: Optional[Axes]) -> List[str]:
    """``field=values`` for each axis, in order."""
    if vary is not None and not isinstance(vary, Mapping):
        raise error("vary", f"is a {type(vary).__name__}", 'a dict: {"limits.requests_max": [16, 32]}')
    axes = []
    for name, values in (vary or {}).items():
        if not isinstance(values, str) and not _is_list(values) and not isinstance(values, range):
            raise error(f"vary of {name}", f"is {values!r}", 'a list: [16, 32], or a range: "16..64*2"')
        axes.append(f"{name}={values if isinstance(values, str) else ','.join(_word(name, one) for one in values)}")
    return axes


def _quoted(text: str) -> str:
    out = []
    for byte in text.encode():
        plain = 32 <= byte < 127 and byte not in b'"\\'
        out.append(chr(byte) if plain else f"\\{byte:03o}")
    return '"' + "".join(out) + '"'


def _shipped(text: str) -> str:
    """The path of a shipped file that is named as in the repository, traces/data/..., and is not in the working directory."""
    kind, slash, rest = text.partition("/")
    if not slash or kind not in ("models", "scenarios", "traces") or os.path.exists(text):
        return text
    folder = _core.data_folder(kind)
    path = os.path.join(folder, rest)
    return path if folder and os.path.exists(path) else text


def _lines(fields: Mapping[str, Any], indent: str, path: str) -> List[str]:
    lines = []
    for name, value in fields.items():
        where = path + name
        for one in value if _is_list(value) else [value]:
            if isinstance(one, Mapping):
                lines += [f"{indent}{name} {{", *_lines(one, indent + "  ", where + "."), indent + "}"]
            elif isinstance(one, (str, os.PathLike)):
                lines.append(f"{indent}{name}: {_quoted(_shipped(_word(where, one)))}")
            elif one is not None:
                lines.append(f"{indent}{name}: {_word(where, one)}")
    return lines


def to_textproto(scenario: Mapping[str, Any]) -> str:
    """The text of a scenario file with these fields.

    Args:
        scenario: fields by name, messages as nested dictionaries, repeated fields as lists. ``None`` leaves a field at
            its default. Paths of files that are shipped (``traces/data/...``) are found from anywhere.
    """
    return "\n".join(_lines(scenario, "", "")) + "\n"


def split(scenario: Scenario) -> Tuple[str, Optional[str]]:
    """The scenario's path or name, and its text if it is a dictionary."""
    if isinstance(scenario, Mapping):
        return "scenario", to_textproto(scenario)
    if isinstance(scenario, (str, os.PathLike)):
        return os.fspath(scenario), None
    raise error("scenario", f"is a {type(scenario).__name__}", "a path, a shipped scenario's name, or a dict")


def with_absolute_paths(fields: Mapping[str, Any]) -> Dict[str, Any]:
    """The same fields, with the names of existing files below the working directory made absolute."""
    out: Dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, Mapping):
            out[name] = with_absolute_paths(value)
        elif isinstance(value, (list, tuple)):
            out[name] = [with_absolute_paths(one) if isinstance(one, Mapping) else one for one in value]
        elif isinstance(value, (str, os.PathLike)) and os.path.isfile(value):
            out[name] = os.path.abspath(value)
        else:
            out[name] = value
    return out
