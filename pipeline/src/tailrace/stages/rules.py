"""Counts of the rules of `process.validate`, and the decision to stop.

Rules are checked in their order. The first that rejects a record ends it, so later rules have not checked that record;
a rule that only warns ends nothing. Tasks report how many records they judged and how many broke each rule; from that
follows how many each rule has checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.config import Rule, Severity
from tailrace.config.rules import MINIMUM
from tailrace.errors import RuleBroken

UNDECODED = -1  # in a list of broken rules: the record could not be decoded, so no rule has judged it
_SHOWN = 200  # characters of a condition

_NONE = pa.array([], pa.list_(pa.int32()))

# Records that were judged, then how many of them broke each rule, in the order of the configuration.
Judged = tuple[int, ...]


@dataclass(frozen=True)
class RuleCount:
    """How many records a rule has checked, and how many of them broke it."""

    name: str
    rule: Rule
    checked: int
    broken: int

    @property
    def share(self) -> float:
        """The share of checked records that broke the rule."""
        return self.broken / self.checked if self.checked else 0.0

    @property
    def stops(self) -> bool:
        """Whether so many records broke the rule that the pipeline has to stop."""
        rule = self.rule
        if rule.severity is not Severity.STOP or rule.ratio is None:
            return False
        return self.broken >= (rule.minimum or MINIMUM) and self.share > rule.ratio

    def as_dict(self) -> dict[str, Any]:
        """Return the counts for programs."""
        return {
            "rule": self.name,
            "severity": self.rule.severity.value,
            "checked": self.checked,
            "broken": self.broken,
        }


def aside(rows: pa.StructArray) -> tuple[pa.BooleanArray, pa.StructArray, pa.ListArray]:
    """Split the rows that a gate gets (`rows.aside`): whether each is accepted, the rejected ones, and broken rules."""
    if rows.null_count == len(rows):
        return rows.is_null(), rows.slice(0, 0), _NONE
    found = rows.drop_null()
    if rows.type.get_field_index("broken") < 0:
        return rows.is_null(), found, _NONE
    rejected = found.field("reason").is_valid()
    broken = found.field("broken")
    undecoded = pa.array([[UNDECODED]] * broken.null_count, broken.type)
    accepted = pc.or_(rows.is_null(), pc.struct_field(rows, "reason").is_null())
    return accepted, found.filter(rejected), pa.concat_arrays([broken, undecoded])


def tally(broken: pa.ListArray, records: int, rules: int) -> Judged:
    """Count the rules that records broke; `broken` has a list for each record that broke one, and may have others."""
    counts = [0] * (rules + 1)
    for each in pc.value_counts(broken.flatten()).to_pylist():
        counts[each["values"] + 1] = each["counts"]
    return records - counts[0], *counts[1:]


def total(judged: Iterable[Judged]) -> Judged:
    """Add the counts of several tasks; those that have judged nothing count nothing."""
    return tuple(map(sum, zip(*filter(None, judged), strict=True)))


def counts(rules: Mapping[str, Rule], judged: Judged) -> list[RuleCount]:
    """Return the counts of each rule."""
    left, *broken = judged or (0,) * (len(rules) + 1)
    found = []
    for (name, rule), number in zip(rules.items(), broken, strict=True):
        found.append(RuleCount(name, rule, left, number))
        left -= number if rule.rejects else 0
    return found


def stopping(rules: Mapping[str, Rule]) -> bool:
    """Return whether a rule can stop the pipeline."""
    return any(rule.severity is Severity.STOP for rule in rules.values())


def check(rules: Mapping[str, Rule], judged: Judged, batch: int, where: str) -> None:
    """Raise RuleBroken if more records of a batch break a rule than it allows; `where` names their ranges."""
    broken = [each for each in counts(rules, judged) if each.stops]
    if not broken:
        return
    first = broken[0]
    condition = first.rule.condition if len(first.rule.condition) <= _SHOWN else f"{first.rule.condition[:_SHOWN]}…"
    others = "".join(f"; and {_counted(each)}" for each in broken[1:])
    raise RuleBroken(
        f"{_counted(first)}, `{condition}`{others}; in batch {batch}, of {where}",
        kept="nothing of this batch was planned, delivered or rejected; the next start chooses a batch from the same "
        "offsets",
        then="`tailrace preview FILE` shows such records; mend the rule, or set process.validate."
        f"{first.name}.ratio: 1 for one run (the records then go to the rejected topic), and start again; "
        "`tailrace explain TR-406` lists the choices",
    )


def _counted(each: RuleCount) -> str:
    return (
        f"{each.broken:,} of {each.checked:,} records ({each.share:.3g} of them; process.validate allows "
        f"{each.rule.ratio:g}) break the rule {each.name!r}"
    )
