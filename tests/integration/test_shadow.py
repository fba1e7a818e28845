"""`tailrace shadow`: the outputs of a changed pipeline are compared with those of the live one, which goes on."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka.admin import AdminClient
from typer.testing import CliRunner, Result

from support.threads import Line, first_part_only, run_in_threads
from tailrace import errors
from tailrace.admin.offsets import apply
from tailrace.cli.main import app
from tailrace.driver.shutdown import Stop
from tailrace.driver.thread_engine import ThreadEngine
from tailrace.kafka.cluster import Cluster
from tailrace.status.events import ignored
from tailrace.testing import Record, consume, produce, wait_until

pytestmark = pytest.mark.integration


@dataclass
class Pair:
    """A live pipeline and its shadow."""

    live: Line
    shadow: Line
    file: Path

    def configure(self, **sections: Any) -> None:
        """Write the shadow's file."""
        pipeline = self.shadow.pipeline(ledger=self.ledger, **sections)
        self.file.write_text(yaml.safe_dump(json.loads(pipeline.model_dump_json(by_alias=True, exclude_unset=True))))

    @property
    def ledger(self) -> dict[str, Any]:
        """Return the ledger, which both use."""
        return {"topic": f"{self.live.name}.ledger"}

    def command(self, name: str, *more: str) -> Result:
        """Run a command of `tailrace shadow`."""
        about = ["--live", self.live.name, "--sink", self.live.sink, "--limit", "5", "--output", "json", *more]
        return CliRunner().invoke(app, ["shadow", name, str(self.file), *about])

    def found(self, name: str) -> dict[str, Any]:
        """Return what a command says."""
        result = self.command(name)
        assert result.exit_code == 0, result.output
        made: dict[str, Any] = json.loads(result.stdout)
        return made

    def send(self, numbers: range) -> None:
        """Write records to the source of both, with keys."""
        records = [Record(b"v%d" % n, key=b"k%d" % n, partition=n % 2) for n in numbers]
        produce(self.live.kafka, self.live.source, records)


@pytest.fixture
def pair(line: Callable[..., Line], tmp_path: Path) -> Pair:
    """Return a pipeline of two partitions and its shadow, whose topic does not exist."""
    live, shadow = line(2), line(2)
    shadow.source, shadow.sink, shadow.name = live.source, f"{live.sink}-shadow", f"{live.name}-shadow"
    made = Pair(live, shadow, tmp_path / "shadow.yaml")
    made.configure()
    return made


def test_difference_names_the_records_that_a_change_concerns(pair: Pair) -> None:
    """From where the live pipeline is: what it delivered before is not read, and its output is its own."""
    pair.send(range(20))
    pair.live.run()
    assert pair.found("begin")["into"] == pair.shadow.sink
    pair.send(range(20, 60))
    pair.live.run()
    pair.shadow.run(ledger=pair.ledger)
    assert pair.found("diff") == {
        "live": 40, "shadow": 40, "equal": 40, "different": 0, "only_live": 0, "only_shadow": 0, "samples": [],
    }  # fmt: skip
    # As a changed function would: one value changed, one record more.
    produce(pair.live.kafka, pair.live.sink, [Record(b"new", key=b"k70"), Record(b"more", key=b"k71")])
    produce(pair.live.kafka, pair.shadow.sink, [Record(b"other", key=b"k70")])
    counts = pair.file.with_name("counts")
    found = json.loads(pair.command("diff", f"--counts-file={counts}").stdout)
    assert json.loads(counts.read_text()) == {name: value for name, value in found.items() if name != "samples"}
    assert [found[name] for name in ("equal", "different", "only_live", "only_shadow")] == [40, 1, 1, 0]
    assert {(each["key"], each["live"], each["shadow"]) for each in found["samples"]} == {
        ("k70", "new", "other"),
        ("k71", "more", None),
    }
    values = [each.value for each in consume(pair.live.kafka, pair.live.sink)]
    assert len(values) == 62, "the live pipeline delivered each record once"


def test_outputs_of_a_batch_in_progress_are_no_difference(pair: Pair) -> None:
    """A shadow begins behind the live pipeline's last plan, and waits until all of it is written."""
    pair.send(range(20))
    with pytest.raises(errors.QueryFailed):
        pair.live.run(first_part_only)
    assert isinstance(pair.command("begin").exception, errors.NotComparable)
    pair.live.run()
    pair.found("begin")
    pair.send(range(20, 30))
    pair.shadow.run(ledger=pair.ledger)
    behind = pair.command("diff")
    assert isinstance(behind.exception, errors.NotComparable)
    assert pair.live.name in behind.exception.what
    pair.live.run()
    found = pair.found("diff")
    assert (found["equal"], found["different"], found["only_live"], found["only_shadow"]) == (10, 0, 0, 0)


@contextmanager
def running(one: Line, **sections: Any) -> Iterator[None]:
    """Run a pipeline in a thread while the block lasts."""
    stop, pipeline = Stop(), one.pipeline(**sections)
    with ThreadPoolExecutor(1) as threads:
        how = (pipeline, one.folder, "run", lambda: ThreadEngine(pipeline, one.folder, "run"), ignored)
        done = threads.submit(lambda: run_in_threads(*how, stop=stop, until_read=False))
        try:
            yield
        finally:
            stop("the test's end")
    done.result(60)


@contextmanager
def fed(pair: Pair) -> Iterator[None]:
    """Write records to the source while the block lasts."""
    end = threading.Event()

    def feed() -> None:
        for first in itertools.count(0, 20):
            pair.send(range(first, first + 20))
            if end.wait(0.01):
                return

    with ThreadPoolExecutor(1) as threads:
        done = threads.submit(feed)
        try:
            yield
        finally:
            end.set()
    done.result(60)


def test_outputs_are_compared_while_both_pipelines_work(pair: Pair) -> None:
    """Records in progress at either end of the range are no differences, and everything between is compared."""
    with fed(pair), running(pair.live):
        wait_until(lambda: len(pair.live.values()) > 100, "the live pipeline to deliver", 60)
        pair.found("begin")
        with running(pair.shadow, ledger=pair.ledger):
            equal = 0
            for _ in range(3):
                found = pair.found("diff")
                assert (found["different"], found["only_live"], found["only_shadow"]) == (0, 0, 0), found
                assert found["equal"] > equal
                equal = found["equal"]


def test_shadow_begins_again(pair: Pair) -> None:
    """What it delivered before is no part of the next comparison."""
    pair.send(range(10))
    pair.live.run()
    for first in (10, 30):
        pair.found("begin")
        pair.send(range(first, first + 20))
        pair.live.run()
        pair.shadow.run(ledger=pair.ledger)
        found = pair.found("diff")
        assert (found["live"], found["shadow"], found["equal"]) == (20, 20, 20)


@pytest.mark.parametrize("moved", [False, True])
def test_shadow_whose_begin_was_interrupted_is_not_compared(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, moved: bool
) -> None:
    """With new bounds and old offsets, or the reverse, equal outputs would count as different."""
    pair.send(range(10))
    pair.live.run()
    pair.found("begin")
    pair.send(range(10, 20))
    pair.live.run()

    def interrupted(*given: Any, **named: Any) -> None:
        if moved:
            apply(*given, **named)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("tailrace.admin.shadow.apply", interrupted)
        assert pair.command("begin").exit_code != 0
    pair.shadow.run(ledger=pair.ledger)
    result = pair.command("diff")
    assert isinstance(result.exception, errors.NotComparable), result.output
    assert "tailrace shadow begin" in result.exception.then
    pair.found("begin")
    pair.send(range(20, 30))
    pair.live.run()
    pair.shadow.run(ledger=pair.ledger)
    found = pair.found("diff")
    assert (found["live"], found["shadow"], found["equal"]) == (10, 10, 10)


def test_shadow_that_could_reach_the_live_pipeline_is_refused(pair: Pair) -> None:
    """Its name, its topics and its input are checked before anything is written."""
    assert isinstance(pair.command("begin").exception, errors.NotComparable), "the live pipeline has no plan"
    pair.send(range(4))
    pair.live.run()
    assert isinstance(pair.command("diff").exception, errors.TailraceError), "nothing has begun"
    for sections, words in (
        ({"pipeline": pair.live.name}, "itself"),
        ({"sink": {"topic": pair.live.sink}}, "the live pipeline's sink"),
        ({"rejected": f"{pair.live.name}.rejected"}, "rejected records"),
        ({"source": {"topics": [pair.live.source, pair.live.sink]}}, "the live pipeline"),
    ):
        pair.configure(**sections)
        refused = pair.command("begin").exception
        assert isinstance(refused, errors.ConfigError), sections
        assert words in refused.what
    assert pair.shadow.sink not in Cluster(pair.shadow.pipeline().kafka).topics()


def test_pipeline_that_has_run_by_itself_is_no_shadow(pair: Pair) -> None:
    """A wrong file would move another pipeline to where the live one is, and its records would be lost."""
    Cluster(pair.shadow.pipeline().kafka).ensure(pair.shadow.sink, 2, 1, {})
    pair.send(range(20))
    pair.live.run()
    pair.shadow.run(ledger=pair.ledger)
    pair.send(range(20, 30))
    pair.live.run()
    refused = pair.command("begin").exception
    assert isinstance(refused, errors.OptionRefused)
    assert "has run before, and nothing shows that it was a shadow" in refused.what
    assert "--again" in refused.then
    assert pair.shadow.name not in refused.then, "the refused name is no way out"
    pair.shadow.run(ledger=pair.ledger)
    assert len(pair.shadow.values()) == 30


@pytest.mark.parametrize("own", ["sink", "rejected"])
def test_shadow_that_would_read_what_it_writes_is_refused_before_its_topics_exist(pair: Pair, own: str) -> None:
    """The live pipeline has the same pattern, so a new topic that matches would be its input."""
    pair.send(range(4))
    pair.live.run()
    topic = {"sink": pair.shadow.sink, "rejected": f"{pair.shadow.name}.rejected"}[own]
    pair.configure(source={"topics": [], "pattern": f"{pair.live.source}|{topic}"})
    refused = pair.command("begin").exception
    assert isinstance(refused, errors.ConfigInvalid)
    assert f"matches {topic!r}, which {pair.shadow.name!r} would write" in refused.what
    assert not {pair.shadow.sink, f"{pair.shadow.name}.rejected"} & set(Cluster(pair.shadow.pipeline().kafka).topics())


@pytest.mark.parametrize("how", ["expired", "sink"])
def test_shadow_begins_again_although_its_bounds_are_gone(
    pair: Pair, tailrace_topics: Callable[..., str], how: str
) -> None:
    """Brokers delete the offsets of a group without members, and of another live sink there are none."""
    pair.send(range(10))
    pair.live.run()
    pair.found("begin")
    pair.shadow.run(ledger=pair.ledger)
    if how == "expired":
        group = f"tailrace.{pair.shadow.name}.shadow"
        admin = AdminClient({"bootstrap.servers": pair.live.kafka})  # no answer reaches a client that is gone
        admin.delete_consumer_groups([group])[group].result(30)
    else:
        pair.live.sink = tailrace_topics("next", 2)
        pair.shadow.sink = f"{pair.live.sink}-shadow"
        pair.configure()
        file = pair.file.with_name("live.yaml")
        file.write_text(pair.live.pipeline().model_dump_json(by_alias=True, exclude_defaults=True))
        assert CliRunner().invoke(app, ["offsets", "accept", str(file), "--yes"]).exit_code == 0
    pair.send(range(10, 20))
    pair.live.run()
    refused = pair.command("begin").exception
    assert isinstance(refused, errors.OptionRefused)
    assert "--again" in refused.then
    again = pair.command("begin", "--again")
    assert again.exit_code == 0, again.output
    pair.send(range(20, 30))
    pair.live.run()
    pair.shadow.run(ledger=pair.ledger)
    found = pair.found("diff")
    assert (found["live"], found["shadow"], found["equal"]) == (10, 10, 10)
