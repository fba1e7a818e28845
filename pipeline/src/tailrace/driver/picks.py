"""Operators that keep one of several rows, and which of the columns that come out depend on the choice.

Rows reach a task in the order in which they arrive, which differs on a replay. So does the row that a deduplication, a
limit or a window function picks, and the last digits of a sum of doubles. If a later shuffle deals the rows out by a
column that depends on the choice, a replay may lose a row or deliver it twice.
"""

from __future__ import annotations

from typing import Any

from tailrace.driver.catalyst import Node, items, references, walk

DEDUPLICATED = "which of several rows a deduplication keeps"
LIMITED = "which rows a limit keeps"
ORDERED = "the order in which rows arrive"
# What to do about each.
ADVICE = {
    DEDUPLICATED: "name all columns that later shuffles use in the deduplication, as in dropDuplicates(['id', 'page'])",
    LIMITED: "shuffle the rows before the limit",
    ORDERED: "order the window by all columns that later shuffles use, or compute the keys from the records alone",
}

EXECUTED = frozenset({"HashAggregate", "ObjectHashAggregate", "SortAggregate"})  # what Spark makes of an aggregation
_BY_ORDER = frozenset(
    {"AnyValue", "CollectList", "CollectSet", "First", "Lag", "Last", "Lead", "NTile", "NthValue", "RowNumber"}
)
_OF_TIES = frozenset({"MaxBy", "MaxMinByK", "MinBy", "Mode"})  # one of the values with the same rank
_SUMMING = frozenset({"Average", "Sum"})
_ROUNDING = frozenset(
    {
        "ApproxTopK", "ApproxTopKAccumulate", "ApproxTopKCombine", "ApproximatePercentile", "Corr", "CovPopulation",
        "CovSample", "HistogramNumeric", "KllSketchAggBigint", "KllSketchAggDouble", "KllSketchAggFloat", "Kurtosis",
        "PearsonCorrelation", "Product", "RegrIntercept", "RegrR2", "RegrReplacement", "RegrSXX", "RegrSXY", "RegrSYY",
        "RegrSlope", "Skewness", "StddevPop", "StddevSamp", "VariancePop", "VarianceSamp",
    }
)  # fmt: skip
_OVER_ROWS = frozenset({"AggregateExpression", "PythonUDAF", "WindowExpression"})
_AGGREGATING = frozenset({"AggregateExpression", "PythonUDAF"})
_ALL_ROWS = frozenset({"UnboundedFollowing$", "UnboundedPreceding$"})
LIMITS = frozenset({"CollectLimit", "GlobalLimit", "Offset", "StreamingGlobalLimit", "Tail", "TakeOrderedAndProject"})


def picked(node: Node) -> dict[int, str]:
    """Return the columns that depend on which rows an operator keeps, and what they depend on."""
    outputs = node.outputs
    keys: list[Any] | None = None
    if node.name in {"Deduplicate", "DeduplicateWithinWatermark"}:
        keys = items(node.plan.keys())
    elif node.name in {"StreamingDeduplicate", "StreamingDeduplicateWithinWatermark"}:
        keys = items(node.plan.keyExpressions())
    if keys is not None:
        kept = {each.exprId().id() for each in keys}
        return {each: DEDUPLICATED for each in outputs if each not in kept}
    return dict.fromkeys(outputs, LIMITED) if node.name in LIMITS else {}


def by_order(node: Node) -> dict[int, str]:
    """Return the columns of a window or an aggregation whose values depend on the order of rows."""
    if node.name in EXECUTED:
        results = items(node.plan.aggregateAttributes())
        made = zip(results, items(node.plan.aggregateExpressions()), strict=False)  # buffers may have more of them
        chosen = {each.exprId().id() for each, how in made if _ordered(how)}
        named = [each for each in items(node.plan.resultExpressions()) if chosen.intersection(references(each))]
    elif node.name in {"Aggregate", "Window"}:
        named = [each for each in node.expressions if _kind(each) == "Alias" and _ordered(each)]
    else:
        return {}
    return {each.exprId().id(): ORDERED for each in named}


def _ordered(expression: Any) -> bool:
    return any(map(_goes_by_order, walk(expression)))


def over_rows(node: Node) -> list[int]:
    """Return the columns of a window or an aggregation whose values depend on which rows it gets."""
    if node.name not in {"Aggregate", "Window"}:
        return []
    return [each.exprId().id() for each in node.expressions if _kind(each) == "Alias" and _has(each, _OVER_ROWS)]


def ranks(node: Node) -> dict[int, frozenset[int]]:
    """Return, for the columns of a window that a filter may pick rows by, the columns that all candidates share."""
    if node.name != "Window":
        return {}
    orders = [items(each.children())[0] for each in items(node.plan.orderSpec())]
    shared = [each for each in (*items(node.plan.partitionSpec()), *orders) if _kind(each) == "AttributeReference"]
    return dict.fromkeys(by_order(node), frozenset(each for column in shared for each in references(column)))


def numbers(node: Node) -> set[int]:
    """Return the columns of a window that number the rows of each group."""
    named = [each for each in node.expressions if _kind(each) == "Alias"] if node.name == "Window" else []
    return {each.exprId().id() for each in named if _has(each, frozenset({"RowNumber"}))}


def _has(expression: Any, kinds: frozenset[str]) -> bool:
    return any(_kind(each) in kinds for each in walk(expression))


def _goes_by_order(expression: Any) -> bool:
    kind = _kind(expression)
    if kind in _SUMMING:  # doubles add up exactly only in one order, and an average adds all integers up as doubles
        added = items(expression.children())[0].dataType().simpleString()
        return added in {"double", "float"} or (kind == "Average" and added == "bigint")
    if kind == "ListAgg":
        return not expression.orderExpressions().size()
    if kind == "WindowExpression":
        return _counts_rows(expression)
    # A user's aggregation gets its rows in the order in which they arrive.
    return kind in _OF_TIES or kind in _BY_ORDER or kind in _ROUNDING or kind == "PythonUDAF"


def _counts_rows(window: Any) -> bool:
    """Return whether it aggregates the rows before or behind each row, of which some may have the same rank."""
    frame = window.windowSpec().frameSpecification()
    return (
        _kind(window.windowFunction()) in _AGGREGATING
        and _kind(frame.frameType()) == "RowFrame$"
        and not {_kind(frame.lower()), _kind(frame.upper())} <= _ALL_ROWS
    )


def _kind(expression: Any) -> str:
    return str(expression.getClass().getSimpleName())
