"""`load`: read the file, apply the environment, validate, and report all problems of the three steps at once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from tailrace.config import Pipeline
from tailrace.config.file.environment import Substitution, apply, overrides
from tailrace.config.file.places import Place, section_at
from tailrace.config.file.problems import Fault, faults, shown, together, unknown_options
from tailrace.config.file.tree import SyntaxFault, Walk, compose
from tailrace.errors import ConfigInvalid


@dataclass(frozen=True)
class Loaded:
    """A pipeline's configuration, its file, and the folder that relative paths start from."""

    pipeline: Pipeline
    path: Path
    folder: Path


@dataclass(frozen=True, order=True)
class _Problem:
    """One line of the message; problems in the file come first, in line order, then those of variables."""

    is_variable: bool
    line: int
    where: str
    text: str

    def __str__(self) -> str:
        return f"{self.where}: {self.text}"


def load(path: Path, environment: Mapping[str, str] | None = None) -> Loaded:
    """Load the configuration in `path`, overridden by `environment` (by default this process's own)."""
    env = os.environ if environment is None else environment
    path = Path(path)
    root = _mapping(path, _read(path))
    walk = Walk(Substitution(env))
    data = walk.section(root, Pipeline)
    problems = [_in_file(path, line, fault) for line, fault in walk.faults]

    set_by: dict[Place, str] = {}
    texts: dict[Place, str] = dict(walk.texts)
    good, bad = overrides(env, data)
    for override in good:
        for place in (override.place, *apply(data, override)):
            set_by[place] = override.name
        texts[override.place] = shown(override.value)
    problems += [_Problem(True, 0, refused.name, refused.message) for refused in bad]

    # A place already reported needs no second message from the schema.
    settled = {fault.place for _, fault in walk.faults if fault.place not in set_by}
    try:
        pipeline = Pipeline.checked(data)
    except ValidationError as error:
        found = [*faults(error, texts=texts), *unknown_options(data)]
        for fault in dict.fromkeys(found):
            if fault.place not in settled:
                problems.append(_placed(path, walk.lines, set_by, fault, data))
    else:
        if not problems:
            return Loaded(pipeline, path, path.resolve().parent)
    raise _invalid(path, problems)


def _read(path: Path) -> str:
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise _unreadable(path, "there is no such file") from None
    except IsADirectoryError:
        raise _unreadable(path, "this is a folder, not a file") from None
    except OSError as error:
        raise _unreadable(path, f"the file cannot be read: {error.strerror}") from None
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise _invalid(path, [_Problem(False, line, f"{path}:{line}", "not UTF-8; save the file as UTF-8")]) from None


def _mapping(path: Path, text: str) -> yaml.MappingNode:
    try:
        node = compose(text)
    except SyntaxFault as error:
        raise _invalid(path, [_in_file(path, error.line, Fault((), error.message))]) from None
    if node is None:
        raise _unreadable(path, "the file is empty")
    if not isinstance(node, yaml.MappingNode):
        line = node.start_mark.line + 1
        raise _invalid(path, [_in_file(path, line, Fault((), "not a mapping; a configuration is `key: value` lines"))])
    return node


def _in_file(path: Path, line: int, fault: Fault) -> _Problem:
    return _Problem(False, line, f"{path}:{line}", str(fault))


def _placed(
    path: Path, lines: Mapping[Place, int], set_by: Mapping[Place, str], fault: Fault, data: Mapping[str, Any]
) -> _Problem:
    """Place the fault at its line or variable; a section's fault goes to the first key that its message names."""
    for place in (*_named(fault, data), *(fault.place[:depth] for depth in range(len(fault.place), 0, -1))):
        if place in set_by:
            return _Problem(True, 0, set_by[place], str(fault))
        if place in lines:
            return _in_file(path, lines[place], fault)
    return _Problem(False, 0, str(path), str(fault))


def _named(fault: Fault, data: Mapping[str, Any]) -> list[Place]:
    inner: Any = data
    for part in fault.place:
        if not isinstance(inner, dict) or part not in inner:
            return []
        inner = inner[part]
    if not isinstance(inner, dict) or (section_at(fault.place) is None):
        return []
    options = inner.get("options")
    words = [word.strip("`',;:.").split("=")[0] for word in fault.message.split()]
    for word in words:
        if word in inner and (*fault.place, word) != ("pipeline",):
            return [(*fault.place, word)]
        if isinstance(options, dict) and word in options:
            return [(*fault.place, "options", word)]
    return []


def _unreadable(path: Path, what: str) -> ConfigInvalid:
    return ConfigInvalid(
        f"{path}: {what}",
        kept="nothing was read from or written to Kafka",
        then="pass the pipeline's YAML file; `tailrace explain configuration` describes its contents",
    )


def _invalid(path: Path, problems: list[_Problem]) -> ConfigInvalid:
    lines = [str(problem) for problem in sorted(problems)]
    what = together(lines)
    return ConfigInvalid(
        what,
        kept="nothing was read from or written to Kafka",
        then=f"correct {path} and run the command again; `tailrace explain configuration` lists every key",
    )
