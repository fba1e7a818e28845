"""The campaign's oracle finds what is planted: losses, duplicates, reorderings, torn transactions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from faults.checker import Cut, Verdict, check, heads
from faults.proof import Proof, Strike, by_fault
from faults.reading import differences
from faults.records import Fed, arrow, is_bad, key, values

FED = Fed({0: 1000, 1: 1000}, bad_every=100)
CUTS = [Cut(batch, sink, ((sink, batch * 250, batch * 250 + 250),)) for batch in range(4) for sink in range(2)]


def written(fed: Fed = FED) -> tuple[dict[int, Any], dict[int, Any]]:
    """What a correct pipeline leaves: the good ones in two partitions by their keys, the bad ones in one."""
    output: dict[int, list[bytes]] = {0: [], 1: []}
    rejected: list[bytes] = []
    for partition, count in fed.counts.items():
        for number, value in enumerate(values(partition, 0, count, bad_every=fed.bad_every)):
            if is_bad(np.array([number]), fed.bad_every)[0]:
                rejected.append(value.tobytes())
            else:
                output[int(key(number)) % 2].append(value.tobytes())
    return {number: heads(each) for number, each in output.items()}, {0: heads(rejected)}


def judged(change: Callable[[Any], Any], number: int = 1) -> Verdict:
    """The verdict where one output partition was changed."""
    output, rejected = written()
    output[number] = change(output[number])
    return check(FED, output, rejected)


def test_what_is_right_is_found_right() -> None:
    """Else the others prove nothing."""
    verdict = check(FED, *written())
    assert verdict.all().wrong == 0
    assert verdict.of(CUTS).wrong == 0
    assert verdict.of(CUTS).records == 2000


def test_a_lost_record_is_found() -> None:
    """And its transaction is torn."""
    verdict = judged(lambda seen: np.delete(seen, 300))
    assert (verdict.all().lost, verdict.all().duplicated, verdict.all().reordered) == (1, 0, 0)
    assert verdict.of(CUTS).torn == 1


def test_a_whole_lost_transaction_is_lost_and_not_torn() -> None:
    """All of it or nothing: nothing is a loss."""
    output, rejected = written()
    cut = CUTS[3]

    def without(seen: Any) -> Any:
        [(partition, start, end)] = cut.spans
        inside = (seen["partition"] == partition) & (seen["number"] >= start) & (seen["number"] < end)
        return seen[~inside]

    verdict = check(FED, {n: without(each) for n, each in output.items()}, {0: without(rejected[0])})
    found = verdict.of(CUTS)
    assert (found.lost, found.torn) == (250, 0)
    assert verdict.of([cut]).lost == 250


def test_a_duplicate_is_found_wherever_it_stands() -> None:
    """In the same partition, in another one (where it is out of order besides), and in the rejected topic."""
    assert judged(lambda seen: np.insert(seen, 400, seen[17])).all().duplicated == 1
    output, rejected = written()
    output[0] = np.append(output[0], output[1][5:9])
    rejected[0] = np.append(rejected[0], rejected[0][:2])
    found = check(FED, output, rejected).all()
    assert (found.lost, found.duplicated, found.reordered) == (0, 6, 4)


def test_a_batch_that_came_out_twice_is_duplicated_and_in_order() -> None:
    """What an at-least-once sink does after a crash."""
    found = judged(lambda seen: np.concatenate([seen[:200], seen[100:]])).all()
    assert (found.lost, found.duplicated, found.reordered) == (0, 100, 0)


def test_records_that_changed_places_are_found() -> None:
    """Two of one source partition; not two of different ones, whose order nobody promises."""

    def swapped(first: int, second: int) -> Callable[[Any], Any]:
        def change(seen: Any) -> Any:
            made = seen.copy()
            made[[first, second]] = made[[second, first]]
            return made

        return change

    output, _ = written()
    origin = output[1]["partition"]
    border = int(np.flatnonzero(origin[1:] != origin[:-1])[0])
    assert judged(swapped(10, 11)).all().reordered == 1
    assert judged(swapped(border, border + 1)).all().reordered == 0


def test_a_rejected_record_in_the_output_is_lost_and_too_many() -> None:
    """It is not where it belongs, and is where it does not."""
    output, rejected = written()
    output[0] = np.append(output[0], rejected[0][:1])
    rejected[0] = rejected[0][1:]
    found = check(FED, output, rejected).all()
    assert (found.lost, found.duplicated) == (1, 1)


def test_a_record_that_never_went_in_is_found() -> None:
    """Of a partition that does not exist, or behind the input's end."""
    strange = heads([values(7, 0, 1)[0].tobytes(), values(0, 5000, 5001)[0].tobytes()])
    assert judged(lambda seen: np.append(seen, strange)).all().duplicated == 2


def test_rejected_records_in_a_transaction_of_their_own_are_not_torn_from_the_others() -> None:
    """Where two branches of a plan read the same range, each has its transaction."""
    output, _ = written()
    missing = check(FED, output, {})
    assert missing.of(CUTS).torn == 8
    parted = [Cut(each.batch, each.sink, each.spans, parted=True) for each in CUTS]
    assert (missing.of(parted).torn, missing.of(parted).lost) == (0, 20)


def test_two_readers_that_got_different_records_are_found() -> None:
    """The one who read all the time has seen what later was not there, or elsewhere."""
    output, _ = written()
    assert differences(output, output) == 0
    assert differences(output, output | {1: output[1][:-3]}) == 3
    assert differences(output, {0: output[0]}) == len(output[1])


def proof(verdict: Verdict, **others: Any) -> Proof:
    """A proof of which only the verdict counts."""
    return Proof(verdict, **{"unsteady": 0, "lingering": (), "surplus": (), "markers": (), **others})


def test_what_is_wrong_is_told_of_the_fault_that_struck() -> None:
    """Of the batch that it struck, and of those that follow until the next."""
    verdict = judged(lambda seen: np.delete(seen, np.flatnonzero(seen["number"] == 601)[:1]))
    strikes = [Strike("first", 1), Strike("second", 3), Strike("both", 3)]
    rows = by_fault(proof(verdict), CUTS, strikes)
    assert [(each.fault, each.runs, each.records, each.again) for each in rows] == [
        ("first", 1, 1500, 0),
        ("second", 1, 500, 0),
        ("both", 1, 500, 500),
    ]
    assert [each.lost for each in rows] == [1, 0, 0]
    assert [each.as_expected for each in rows] == [False, True, True]


@pytest.mark.parametrize("what", ["unsteady", "lingering", "surplus", "markers"])
def test_what_no_batch_can_be_blamed_for_is_told_too(what: str) -> None:
    """Open transactions, ids that grow, markers that say something else, readers that disagree."""
    wrong = proof(check(FED, *written()), **{what: 1 if what == "unsteady" else ("something",)})
    [row] = by_fault(wrong, CUTS, [Strike("a fault", 0)])
    assert not row.as_expected


def test_rows_of_the_sink_are_the_values_that_are_fed() -> None:
    """Both ways into a pipeline carry the same records."""
    rows = arrow(3, 10, 400, bad_every=100)
    assert rows.column("value").to_pylist() == [each.tobytes() for each in values(3, 10, 400, bad_every=100)]
    assert rows.column("key").to_pylist() == [key(number) for number in range(10, 400)]
    assert [n + 10 for n, reason in enumerate(rows.column("reason").to_pylist()) if reason] == [99, 199, 299, 399]
