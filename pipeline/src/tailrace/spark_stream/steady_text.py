"""Expressions and operators of a plan as texts that are the same in each process that plans the same.

Spark prints the ids of columns and the addresses of arrays, lists in the order that a set has in this process, and the
number of cores; and it cuts long calls and types short.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tailrace.driver.catalyst import Node, items
from tailrace.driver.dealing import join_type

# The ids that Spark gives to columns, and the numbers by which it tells generated names apart.
_IDS = re.compile(r"(_\d+)?#\d+L?")
_ADDRESSES = re.compile(r"(?<=\[[BCDFIJSZ])@[0-9a-f]{1,8}\b")
_TIMES = frozenset({"date", "timestamp", "timestamp_ntz"})
_SEEDS = frozenset({"integer", "long"})  # the types of the seeds that chance has, drawn anew at each start
_BETWEEN = "\0"
_MOST = "spark.sql.debug.maxToStringFields"


def holds_rows(leaf: Node) -> bool:
    """Return whether a leaf is an RDD, which may be that of the batch."""
    return "ExistingRDD" in leaf.name or leaf.name == "LogicalRDD"


@contextmanager
def in_full(plan: Any) -> Iterator[None]:
    """Let Spark print expressions in full: those of this logical plan, and others of this thread."""
    settings = plan.conf()
    before = settings.getConfString(_MOST) if settings.contains(_MOST) else None
    settings.setConfString(_MOST, str(2**31 - 1))
    try:
        yield
    finally:
        if before is None:
            settings.unsetConf(_MOST)
        else:
            settings.setConfString(_MOST, before)


def operator(node: Node) -> list[str]:
    """Return the kind of an operator, and what it does besides its expressions."""
    more = ""
    if node.name in {"Join", "LateralJoin", "AsOfJoin"}:
        more = join_type(node)
    elif node.name == "Generate":
        more = "outer" if node.plan.outer() else ""
    elif node.name == "Sample":  # its seed may be drawn at each start
        more = f"{node.plan.lowerBound()} {node.plan.upperBound()} {node.plan.withReplacement()}"
    return [node.name, more]


def table(leaf: Node) -> str:
    """Describe where the rows of a table come from, as far as Spark tells; of the records' source, nothing."""
    if holds_rows(leaf) or "Stream" in leaf.name:
        return ""
    if leaf.name == "LocalRelation":
        return f"LocalRelation {leaf.plan.data().hashCode()}"
    if leaf.name in {"LogicalRelation", "Relation"} and is_a(leaf.plan.relation(), "HadoopFsRelation"):
        return str(leaf.plan.relation().location().rootPaths().mkString(","))
    return constant(leaf)


def written(expression: Any) -> str:
    """Return an expression as Spark prints it, whatever order a set has in this process."""
    text = str(expression.toString())
    told = [str(each.toString()) for each in _literals(expression)]
    for each in _lists(expression) if " IN (" in text or " INSET " in text else ():
        if is_a(each, "InSet"):  # printed in order
            told.append(_sorted(each.hset()))
            continue
        listed = _sorted(each.list())
        text = text.replace(each.toString(), f"{each.value().toString()} IN ({listed})")
        told += [listed] if each.inSetConvertible() else []
    return "".join([_without_ids(text), *filter(_IDS.search, told)])  # what looks like an id there is none


def steadily_written(expression: Any) -> str | list[Any]:
    """Return an expression without what chance or the time makes of it in each run."""
    steady = expression.deterministic()
    if steady and all(map(_steady, _literals(expression))):
        return written(expression)
    children = items(expression.children())
    chance = not steady and all(each.deterministic() for each in children)
    told = [each for each in children if not (chance and _is_seed(each)) or is_a(expression, "PythonUDF")]
    return [_own(expression, [] if chance else children), *map(steadily_written, told)]


def _sorted(values: Any) -> str:
    return ",".join(sorted(values.mkString(_BETWEEN).split(_BETWEEN)))


def _lists(expression: Any) -> Iterator[Any]:
    """Yield the comparisons with a list of values; lists may be long."""
    listed = is_a(expression, "In")
    if listed or is_a(expression, "InSet"):
        yield expression
    for each in [expression.value()] if listed else items(expression.children()):
        yield from _lists(each)


def _literals(expression: Any) -> Iterator[Any]:
    """Yield the literals, but for those of lists, which may be long and whose order does not count."""
    if is_a(expression, "Literal"):
        yield expression
    for each in [expression.value()] if is_a(expression, "In") else items(expression.children()):
        yield from _literals(each)


def _own(expression: Any, children: list[Any]) -> str:
    """Return what an expression is without its children; of one that has none, only its kind."""
    if is_a(expression, "PythonUDF"):
        return str(expression.name())
    if not children:
        return str(expression.getClass().getSimpleName())
    text = str(expression.toString())
    for each in sorted((str(each.toString()) for each in children), key=len, reverse=True):
        text = text.replace(each, "") if each else text
    return _without_ids(text)


def _is_seed(expression: Any) -> bool:
    return is_a(expression, "Literal") and expression.dataType().typeName() in _SEEDS


def _steady(literal: Any) -> bool:
    """Return whether a literal is of no type that a run's own time has."""
    return literal.dataType().typeName() not in _TIMES


def constant(node: Node) -> str:
    """Describe an operator of a table that cannot change, with its rows if the plan holds them."""
    if node.name == "LocalRelation" and not node.plan.data().isEmpty():
        return str(node.plan.toSQL("t"))
    if node.name == "Range":  # Spark would add the number of cores
        return f"Range {node.plan.start()} {node.plan.end()} {node.plan.step()}"
    if node.children:
        return json.dumps([*operator(node), *map(written, node.expressions)])
    return _without_ids(node.plan.simpleString(25))


def _without_ids(text: str) -> str:
    """Leave out the ids of columns and the addresses of Java's arrays, which each process gives anew."""
    return _ADDRESSES.sub("", _IDS.sub("", text))


def is_a(expression: Any, kind: str) -> bool:
    """Return whether an expression, or a part of a plan, is of this class of Spark's."""
    return bool(expression.getClass().getSimpleName() == kind)
