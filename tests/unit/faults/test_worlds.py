"""Worlds are drawn from their seeds and replayed from their lines; their oracle finds planted faults."""

from __future__ import annotations

import io
import json
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest
import yaml

from faults.records import HEAD
from faults.worlds.__main__ import shrunk
from faults.worlds.configuration import configuration
from faults.worlds.drawing import draw
from faults.worlds.encodings import IN_SCHEMA, OUT_SCHEMA, body, heads_of
from faults.worlds.mutants import MUTANTS, SOURCE, Mutant
from faults.worlds.oracle import Gap, Outcome, judge, ordered
from faults.worlds.records import ABORTED, FACTOR, FILLER, FUNCTIONS, PAD, transactions, values, wanted
from faults.worlds.world import (
    DELETIONS,
    LOSSES,
    OF_ITS_LIFE,
    TAKE_OFFSETS,
    Crash,
    Encoding,
    Input,
    Knobs,
    Place,
    Strike,
    Work,
    World,
)
from tailrace.config import LEDGER_PARTITIONS
from tailrace.config.file import load

PLAIN = World(
    seed=1, place=Place.THREADS, work=Work.SAME, encoding=Encoding.RAW, input=Input.PLAIN, counts=(40, 0, 25),
    outputs=2, bad_every=0, max_records=10, sink_partitions=None, source_partitions=None, strikes=(), crashes=(),
)  # fmt: skip
COUNTS = dict(enumerate(PLAIN.counts))


def made(world: World) -> tuple[dict[int, Any], dict[int, Any]]:
    """Return the topics that a correct pipeline leaves: outputs in two partitions by their numbers, and rejected."""
    output: dict[int, list[tuple[int, int, int]]] = {0: [], 1: []}
    rejected: list[tuple[int, int, int]] = []
    for partition, count in enumerate(world.counts):
        good, bad = wanted(world, 0, count)
        for number in np.flatnonzero(good):
            output[int(number) % 2].append((0, partition, int(number)))
        rejected += [(1, partition, int(number)) for number in np.flatnonzero(bad)]
    return {number: np.array(rows, dtype=HEAD) for number, rows in output.items()}, {0: np.array(rejected, dtype=HEAD)}


def judged(world: World, change: Any) -> Outcome:
    """Return the outcome after changing the first output partition."""
    output, rejected = made(world)
    output[0] = change(output[0])
    return judge(world, dict(enumerate(world.counts)), output, rejected)


def test_a_world_is_the_same_for_the_same_seed_and_from_its_line() -> None:
    """A line of a log is enough to run it again."""
    for seed in range(50):
        world = draw(seed)
        assert World.parse(world.line) == world == draw(seed)


def test_every_kind_of_world_is_drawn() -> None:
    """Otherwise a part of the product would never be attacked."""
    worlds = [draw(seed) for seed in range(1000)]
    for name, kind in (("place", Place), ("work", Work), ("encoding", Encoding), ("input", Input)):
        assert {getattr(each, name) for each in worlds} == set(kind)
    assert {each for world in worlds for each in world.strikes} == set(Strike)
    assert len({each.at for world in worlds for each in world.crashes}) > 20
    assert any(not each.crashes and not each.strikes for each in worlds) is False
    assert any(0 in each.counts for each in worlds)


def test_order_is_promised_in_a_quarter_of_the_worlds() -> None:
    """A defect that only reorders is found in no other world."""
    assert sum(ordered(draw(seed)) for seed in range(400)) >= 100


def test_job_that_only_writes_has_no_more_partitions_than_its_ledger() -> None:
    """It has a sink partition for each source partition, so its first batch would be refused for ever."""
    assert all(len(draw(seed, Place.DROPIN).counts) <= LEDGER_PARTITIONS for seed in range(300))


def test_every_world_has_a_pipeline_that_tailrace_accepts(tmp_path: Path) -> None:
    """A world that no pipeline can have proves nothing, and neither do the smaller ones that are made of it."""
    (tmp_path / "work.py").write_text(FUNCTIONS)
    for name, schema in (("in.avsc", IN_SCHEMA), ("out.avsc", OUT_SCHEMA)):
        (tmp_path / name).write_text(json.dumps(schema))
    file, accepted = tmp_path / "pipeline.yaml", 0
    drawn = [draw(seed) for seed in range(300)]
    for world in [*drawn, *(smaller for each in drawn[:40] for smaller in each.smaller())]:
        if world.place is Place.DROPIN:
            continue  # it has no file
        registry = "http://localhost:8081" if world.encoding is Encoding.REGISTRY else ""
        data = configuration(world, "localhost:9092", "world", "in", "out", registry)
        file.write_text(yaml.safe_dump(data))
        load(file)  # raises
        accepted += 1
    assert accepted > 400


def test_line_of_a_world_from_before_backfills_and_replays_is_run_without_them() -> None:
    """The lines of earlier records stay usable."""
    data = json.loads(PLAIN.line)
    del data["backfill"], data["replays"]
    assert World.parse(json.dumps(data)) == PLAIN


def test_backfill_is_drawn_only_where_its_range_stays_and_its_function_has_no_state() -> None:
    """Elsewhere `tailrace backfill` refuses, and rightly so."""
    found = [each for each in map(draw, range(400)) if each.backfill is not None]
    assert len(found) > 20
    assert {len(each.backfill or ()) for each in found} >= {0, 1, 2}
    for each in found:
        assert each.place is not Place.DROPIN
        assert each.work is not Work.DISTINCT
        assert not DELETIONS.intersection(each.strikes)


def test_replay_is_drawn_only_where_the_marks_tell_what_is_rejected_again() -> None:
    """What a killed one sent is rejected, too, if records of aborted transactions are read."""
    found = [each for each in map(draw, range(400)) if each.replays is not None]
    assert len(found) > 15
    for each in found:
        assert each.bad_every or each.knobs.raises
        assert each.place is not Place.DROPIN
        assert each.input is not Input.COMPACTED
        assert not each.knobs.uncommitted
        assert not {Strike.ISOLATION, *LOSSES}.intersection(each.strikes)


def test_strike_of_its_life_is_drawn_only_where_the_oracle_can_tell_what_must_come_of_it() -> None:
    """Records that were skipped are told by their offsets, and a stateful pipeline keeps its name and its offsets."""
    found: Counter[Strike] = Counter()
    for world in map(draw, range(1000)):
        lived = [each for each in world.strikes if each in OF_ITS_LIFE]
        found.update(lived)
        assert len(lived) <= 1
        assert len(world.strikes) <= 4
        assert not lived or world.place is not Place.DROPIN
        if LOSSES.intersection(world.strikes):
            assert world.input is Input.PLAIN
            assert not TAKE_OFFSETS.intersection(world.strikes)
        if world.work is Work.DISTINCT:
            assert set(lived) <= {Strike.RESTORE}
    assert min(found[each] for each in OF_ITS_LIFE) > 5


def test_transactions_of_the_input_share_out_its_records_in_order() -> None:
    """A transaction of each partition alone would make hundreds of them, which cost more than all else in a world."""
    world = replace(PLAIN, counts=(1200, 3, 0, 400, 700))
    found = list(transactions(world, dict(enumerate(world.counts)), {0: 10}))
    for partition, count in enumerate(world.counts):
        start = 10 if partition == 0 else 0
        numbers = [number for each in found for of, records in each if of == partition for number, _ in records]
        assert numbers == list(range(start, start + count))
    assert [sum(len(records) for _, records in each) for each in found] == [500, 500, 603, 500, 200]


def test_each_smaller_world_lacks_one_thing() -> None:
    """So a failure can be followed to what it needs."""
    world = replace(PLAIN, strikes=(Strike.KILL, Strike.GROW), crashes=(Crash("plan_sent", 2),), work=Work.EXPLODE)
    smaller = world.smaller()
    assert {len(each.strikes) for each in smaller} == {1, 2}
    assert any(not each.crashes for each in smaller)
    assert all(World.parse(each.line) == each for each in smaller)
    assert world not in smaller


def test_smaller_world_keeps_an_encoding_that_can_have_bad_records() -> None:
    """Otherwise it fails because nothing rejects them, and hides what failed."""
    world = replace(PLAIN, encoding=Encoding.JSON, bad_every=97)
    assert not [each for each in world.smaller() if each.encoding is Encoding.RAW and each.bad_every]


def test_world_is_made_smaller_only_if_it_fails_again_and_only_for_so_long() -> None:
    """One that was starved of CPU is kept then, and a run that is to end in time has none for a dozen more worlds."""
    world, tried = replace(PLAIN, strikes=(Strike.KILL, Strike.GROW)), list[World]()

    def fails(each: World) -> bool:
        tried.append(each)
        return Strike.GROW in each.strikes

    smallest = shrunk(world, fails)
    assert smallest is not None
    assert (smallest.strikes, len(smallest.counts)) == ((Strike.GROW,), 1)
    assert tried[0] == world
    assert shrunk(world, lambda each: False) is None
    tried.clear()
    assert shrunk(world, fails, until=time.monotonic() - 1) == world
    assert tried == [world]


@pytest.mark.parametrize("work", Work)
@pytest.mark.parametrize("bad_every", [0, 7])
def test_a_correct_output_passes(work: Work, bad_every: int) -> None:
    """Otherwise the other tests would prove nothing."""
    world = replace(PLAIN, work=work, bad_every=bad_every)
    found = judge(world, COUNTS, *made(world))
    assert found.good
    assert found.records == 65


def test_a_lost_output_is_found() -> None:
    """The others of the same input are there."""
    found = judged(replace(PLAIN, work=Work.EXPLODE), lambda seen: np.delete(seen, 3))
    assert (found.lost, found.duplicated, found.reordered) == (1, 0, 0)
    assert not found.good


def test_lost_input_of_a_function_with_state_may_be_missing_only_if_both_records_are_gone() -> None:
    """Each block of ten comes twice; of the last, half a block comes once."""
    world = replace(PLAIN, work=Work.DISTINCT, counts=(25,))
    output, rejected = made(world)
    without = {number: heads[heads["number"] != 3 * FACTOR] for number, heads in output.items()}
    gone = {number: heads[heads["number"] != 22 * FACTOR] for number, heads in output.items()}
    assert judge(world, {0: 25}, without, rejected, [Gap(0, 0, 10)]).lost == 1
    assert judge(world, {0: 25}, without, rejected, [Gap(0, 0, 10), Gap(0, 13, 14)]).good
    assert judge(world, {0: 25}, gone, rejected, [Gap(0, 10, 22)]).lost == 1
    assert judge(world, {0: 25}, gone, rejected, [Gap(0, 22, 23)]).good


def test_a_repeated_output_is_found() -> None:
    """It comes at the end, but is not out of order: its first place counts."""
    found = judged(PLAIN, lambda seen: np.append(seen, seen[:1]))
    assert (found.lost, found.duplicated, found.reordered) == (0, 1, 0)


def test_backfill_that_leaves_its_range_is_found() -> None:
    """What comes before its range is as wrong as what is missing in it."""
    world = replace(PLAIN, work=Work.EXPLODE)
    output, rejected = made(world)
    starts = {0: 10, 1: 0, 2: 5}
    inside = {
        number: heads[
            heads["number"].astype(np.int64) >= np.array([starts[each] * FACTOR for each in heads["partition"]])
        ]
        for number, heads in output.items()
    }
    assert judge(world, COUNTS, inside, rejected, starts=starts).good
    assert judge(world, COUNTS, output, rejected, starts=starts).duplicated > 0
    assert judge(world, COUNTS, {**inside, 0: inside[0][1:]}, rejected, starts=starts).lost == 1
    both = Outcome(records=9, lost=1).plus(Outcome(lost=2, wrong=1, examples=("backfill: one",)))
    assert (both.records, both.lost, both.wrong, both.examples) == (9, 3, 1, ("backfill: one",))


def test_record_that_is_replayed_is_to_be_rejected_once_more() -> None:
    """A replay that sends more or less than it marks is found, and so is a record that is lost on its second way."""
    world = replace(PLAIN, bad_every=7)
    output, rejected = made(world)
    heads = rejected[0]
    once, twice = {0: np.append(heads, heads[:2])}, {0: np.concatenate([heads, heads[:2], heads[:1]])}
    assert judge(world, COUNTS, output, once, again={0: heads[:2]}).good
    assert judge(world, COUNTS, output, twice, again={0: np.append(heads[:2], heads[:1])}).good
    assert judge(world, COUNTS, output, twice, again={0: heads[:2]}).duplicated == 1
    assert judge(world, COUNTS, output, once, again={0: heads[:1]}).duplicated == 1
    assert judge(world, COUNTS, output, once, again={0: heads[:3]}).lost == 1
    assert judge(world, COUNTS, output, once).duplicated == 2


def test_an_aborted_record_is_found() -> None:
    """No input record leads to it."""
    aborted = np.array([(0, 0, ABORTED + 1)], dtype=HEAD)
    assert judged(PLAIN, lambda seen: np.append(seen, aborted)).duplicated == 1


def test_an_aborted_record_is_allowed_where_the_isolation_changes_and_the_others_are_compared_as_ever() -> None:
    """Whether it comes out depends on how long its transaction is open."""
    world = replace(PLAIN, strikes=(Strike.ISOLATION,))
    aborted = np.array([(0, 0, ABORTED + 1)], dtype=HEAD)
    assert judged(world, lambda seen: np.concatenate([aborted, seen])).good
    assert judged(world, lambda seen: np.append(seen[1:], aborted)).lost == 1
    assert judged(world, lambda seen: np.append(seen, seen[:1])).duplicated == 1
    assert judged(world, lambda seen: seen[::-1]).reordered > 0


def test_record_that_the_brokers_may_remove_is_allowed_once() -> None:
    """It depends on their compaction whether the pipeline ever saw it."""
    filler = np.array([(0, 0, FILLER * FACTOR)], dtype=HEAD)
    world = replace(PLAIN, input=Input.COMPACTED)
    assert judged(world, lambda seen: np.append(seen, filler)).good
    assert judged(world, lambda seen: np.append(filler, seen)).good
    assert judged(world, lambda seen: np.append(seen, [filler, filler])).duplicated == 1
    again = replace(world, knobs=Knobs(at_least_once=True))
    assert judged(again, lambda seen: np.append(seen, [filler, filler])).good


def test_outputs_after_the_limit_may_be_missing_but_not_repeated() -> None:
    """The rejected records must all be there."""
    world = replace(PLAIN, work=Work.LIMIT, bad_every=7)
    assert judged(world, lambda seen: seen[:3]).good
    assert judged(world, lambda seen: np.append(seen[:3], seen[:1])).duplicated == 1
    output, rejected = made(world)
    assert judge(world, COUNTS, output, {0: rejected[0][1:]}).lost == 1


def test_function_with_a_limit_ends_before_its_input() -> None:
    """Otherwise no world would show what happens to the records that it never reads."""
    functions: dict[str, Any] = {}
    exec(FUNCTIONS, functions)
    kafka = pa.StructArray.from_arrays([pa.array([b"k"] * 40)], names=["key"])
    batch = pa.RecordBatch.from_arrays([pa.array(values(PLAIN, 0, 0, 40)), kafka], names=["value", "kafka"])
    given = iter([batch] * 4)
    assert sum(each.num_rows for each in functions["arrow"](given, "limit", "raw")) == functions["LIMIT"]
    assert next(given, None) is not None


def test_outputs_in_another_order_are_found_where_an_order_is_promised() -> None:
    """Neither a shuffle nor split ranges promise one."""
    assert judged(PLAIN, lambda seen: seen[::-1]).reordered > 0
    assert judged(replace(PLAIN, source_partitions=2), lambda seen: seen[::-1]).reordered == 0


@pytest.mark.parametrize("work", [Work.SAME, Work.EXPLODE, Work.FILTER])
@pytest.mark.parametrize("encoding", Encoding)
def test_the_function_makes_what_the_oracle_wants(work: Work, encoding: Encoding) -> None:
    """The function and the oracle are two texts of the same rule."""
    world = replace(PLAIN, work=work, encoding=encoding, counts=(50,))
    functions: dict[str, Any] = {}
    exec(FUNCTIONS, functions)
    given = values(world, 0, 0, 50)
    kafka = pa.StructArray.from_arrays([pa.array([b"k"] * 50)], names=["key"])
    if encoding is Encoding.RAW:
        batch = pa.RecordBatch.from_arrays([pa.array(given), kafka], names=["value", "kafka"])
    else:
        heads = heads_of(world, given)
        columns = [pa.array(heads[name].astype(np.int64)) for name in ("partition", "number")]
        batch = pa.RecordBatch.from_arrays([*columns, kafka], names=["p", "n", "kafka"])
    (out,) = functions["arrow"](iter([batch]), work.value, encoding.value)
    numbers = (
        heads_of(world, out.column("value").to_pylist())["number"]
        if encoding is Encoding.RAW
        else out.column("n").to_pylist()
    )
    expected = np.flatnonzero(wanted(world, 0, 50)[0])
    assert Counter(map(int, numbers)) == Counter(map(int, expected))
    assert functions["FACTOR"] == FACTOR


@pytest.mark.parametrize("encoding", Encoding)
def test_every_encoding_carries_the_same_heads(encoding: Encoding) -> None:
    """Records to be rejected can be told from each other too."""
    world = replace(PLAIN, encoding=encoding, bad_every=7)
    found = heads_of(world, values(world, 3, 5, 15))
    assert found["partition"].tolist() == [3] * 10
    assert found["number"].tolist() == list(range(5, 15))
    assert found["bad"].tolist() == [number % 7 == 6 for number in range(5, 15)]


@pytest.mark.parametrize("encoding", [Encoding.AVRO, Encoding.REGISTRY])
def test_avro_is_what_fastavro_reads(encoding: Encoding) -> None:
    """The encoder of the oracle is its own, so it cannot share a mistake with the product."""
    world = replace(PLAIN, encoding=encoding, bad_every=3)
    schema = fastavro.parse_schema(IN_SCHEMA)
    for number, value in enumerate(values(world, 2, 0, 200)):
        if number % 3 == 2:
            with pytest.raises(EOFError):
                fastavro.schemaless_reader(io.BytesIO(body(world, value)), schema, None)
        else:
            found: Any = fastavro.schemaless_reader(io.BytesIO(body(world, value)), schema, None)
            assert (found["p"], found["n"], found["pad"]) == (2, number, PAD)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda each: each.name)
def test_each_mutant_still_breaks_the_module_that_it_names(mutant: Mutant, tmp_path: Path) -> None:
    """The text is there once, what it becomes is valid Python, and worlds that run it are drawn."""
    broken = mutant.build(tmp_path) / "tailrace" / mutant.module
    assert broken.read_text() != (SOURCE / mutant.module).read_text()
    assert sum(mutant.only(draw(seed, Place.THREADS)) for seed in range(200)) >= 3
    compile(broken.read_text(), mutant.module, "exec")
