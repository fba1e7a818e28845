"""The campaign's oracle finds planted faults: losses, duplicates, reorderings, torn transactions."""

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
    """Return the output of a correct pipeline: good records in two partitions by their keys, bad ones in one."""
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
    """Return the verdict after changing one output partition."""
    output, rejected = written()
    output[number] = change(output[number])
    return check(FED, output, rejected)


def test_a_correct_output_passes() -> None:
    """Otherwise the other tests would prove nothing."""
    verdict = check(FED, *written())
    assert verdict.all().wrong == 0
    assert verdict.of(CUTS).wrong == 0
    assert verdict.of(CUTS).records == 2000


def test_a_lost_record_is_found() -> None:
    """Its transaction is torn."""
    verdict = judged(lambda seen: np.delete(seen, 300))
    assert (verdict.all().lost, verdict.all().duplicated, verdict.all().reordered) == (1, 0, 0)
    assert verdict.of(CUTS).torn == 1


def test_a_completely_lost_transaction_is_lost_and_not_torn() -> None:
    """Atomicity holds, but nothing came out: that is a loss."""
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


def test_a_duplicate_is_found_anywhere() -> None:
    """It may be in the same partition, in another one (where it is also out of order), or in the rejected topic."""
    assert judged(lambda seen: np.insert(seen, 400, seen[17])).all().duplicated == 1
    output, rejected = written()
    output[0] = np.append(output[0], output[1][5:9])
    rejected[0] = np.append(rejected[0], rejected[0][:2])
    found = check(FED, output, rejected).all()
    assert (found.lost, found.duplicated, found.reordered) == (0, 6, 4)


def test_a_batch_that_came_out_twice_is_duplicated_and_in_order() -> None:
    """An at-least-once sink does this after a crash."""
    found = judged(lambda seen: np.concatenate([seen[:200], seen[100:]])).all()
    assert (found.lost, found.duplicated, found.reordered) == (0, 100, 0)


def test_swapped_records_are_found() -> None:
    """This holds for two records of one source partition; the order of different partitions is not guaranteed."""

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


def test_a_rejected_record_in_the_output_is_lost_and_duplicated() -> None:
    """It is missing where it belongs, and present where it does not."""
    output, rejected = written()
    output[0] = np.append(output[0], rejected[0][:1])
    rejected[0] = rejected[0][1:]
    found = check(FED, output, rejected).all()
    assert (found.lost, found.duplicated) == (1, 1)


def test_a_record_that_never_went_in_is_found() -> None:
    """It is of a partition that does not exist, or past the end of the input."""
    strange = heads([values(7, 0, 1)[0].tobytes(), values(0, 5000, 5001)[0].tobytes()])
    assert judged(lambda seen: np.append(seen, strange)).all().duplicated == 2


def test_rejected_records_in_a_transaction_of_their_own_are_not_torn() -> None:
    """If two branches of a plan read the same range, each has its own transaction."""
    output, _ = written()
    missing = check(FED, output, {})
    assert missing.of(CUTS).torn == 8
    parted = [Cut(each.batch, each.sink, each.spans, parted=True) for each in CUTS]
    assert (missing.of(parted).torn, missing.of(parted).lost) == (0, 20)


def test_a_difference_between_two_readers_is_found() -> None:
    """The reader that ran all the time saw records that were later gone, or elsewhere."""
    output, _ = written()
    assert differences(output, output) == 0
    assert differences(output, output | {1: output[1][:-3]}) == 3
    assert differences(output, {0: output[0]}) == len(output[1])


def proof(verdict: Verdict, **others: Any) -> Proof:
    """Return a proof of which only the verdict counts."""
    return Proof(verdict, **{"unsteady": 0, "lingering": (), "surplus": (), "markers": (), **others})


def test_a_wrong_record_is_attributed_to_the_fault_that_struck() -> None:
    """It counts for the fault of its batch, or of the last batch before it that was struck."""
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
def test_a_problem_of_no_batch_is_reported_too(what: str) -> None:
    """Examples are open transactions, ids that grow, wrong markers, and readers that disagree."""
    wrong = proof(check(FED, *written()), **{what: 1 if what == "unsteady" else ("something",)})
    [row] = by_fault(wrong, CUTS, [Strike("a fault", 0)])
    assert not row.as_expected


def test_rows_for_the_sink_equal_the_fed_values() -> None:
    """Both ways into a pipeline carry the same records."""
    rows = arrow(3, 10, 400, bad_every=100)
    assert rows.column("value").to_pylist() == [each.tobytes() for each in values(3, 10, 400, bad_every=100)]
    assert rows.column("key").to_pylist() == [key(number) for number in range(10, 400)]
    assert [n + 10 for n, reason in enumerate(rows.column("reason").to_pylist()) if reason] == [99, 199, 299, 399]
