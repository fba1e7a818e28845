"""What the examples' generators write, and what must come out of it according to their `expected`."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable

import pytest

from tailrace.config import Pipeline
from tailrace.config.file import load as load_pipeline
from tailrace.demo.example import Example, example, load
from tailrace.demo.proof import Place
from tailrace.kafka.reader import Message

NAMES = ("tweets", "rich-events", "windowed-counts")


def stored(values: Iterable[bytes | None], topic: str = "in") -> list[Message]:
    """Return the values as they would be stored in one partition."""
    return [Message(topic, 0, offset, 0, None, value) for offset, value in enumerate(values)]


def generated(chosen: Example, count: int, seed: int = 0) -> list[Message]:
    """Return the first records that the example's generator writes."""
    messages = load(chosen.generator).messages(seed)
    return stored(message.value for message in itertools.islice(messages, count))


@pytest.mark.parametrize("name", NAMES)
def test_a_seed_determines_the_input(name: str) -> None:
    """The same seed gives the same records, and another seed gives others."""
    chosen = example(name)
    assert generated(chosen, 300, seed=4) == generated(chosen, 300, seed=4)
    assert generated(chosen, 300, seed=4) != generated(chosen, 300, seed=5)


@pytest.mark.parametrize("name", NAMES)
def test_the_pipeline_is_valid(name: str) -> None:
    """Each example's configuration passes the schema, and the files that it names exist."""
    chosen = example(name)
    pipeline = load_pipeline(chosen.pipeline).pipeline
    assert isinstance(pipeline, Pipeline)
    named = pipeline.process.function or pipeline.process.arrow
    assert named is not None
    assert (chosen.folder / named.partition(":")[0]).is_file()


@pytest.mark.parametrize("name", NAMES)
def test_the_input_has_a_few_broken_records(name: str) -> None:
    """Between one in a thousand and one in ten of an example's records must be rejected."""
    count = 3000
    rejected = example(name).expected(generated(example(name), count)).rejected.total()
    assert count / 1000 < rejected < count / 10


@pytest.mark.parametrize("name", NAMES)
def test_every_expected_output_has_a_name_of_its_own(name: str) -> None:
    """No two outputs of an example's input share an identity, so a second one is a duplicate."""
    outputs = example(name).expected(generated(example(name), 3000)).outputs
    assert outputs
    assert set(outputs.values()) == {1}


def test_a_tweet_with_hashtags_gives_one_output_for_each() -> None:
    """Outputs are identified by the tweet and the hashtag's position in it; a tweet without hashtags gives none."""
    chosen = example("tweets")
    encode = load(chosen.generator).encode
    tweet = {"id": 7, "user": "u", "text": "", "lang": "en", "created_at": 0, "hashtags": ["A", "b", "A"]}
    found = chosen.expected(stored([encode(tweet), encode({**tweet, "id": 8, "hashtags": []})]))
    assert set(found.outputs) == {"7#0", "7#1", "7#2"}
    assert not found.rejected


def test_no_part_of_a_tweet_is_a_tweet() -> None:
    """A tweet truncated at any byte is expected among the rejected, and so is an empty or null value."""
    chosen = example("tweets")
    value = load(chosen.generator).encode(
        {"id": 300, "user": "user", "text": "text", "lang": "en", "created_at": 1, "hashtags": ["a", "b"]}
    )
    parts = [value[:length] for length in range(len(value))]
    found = chosen.expected(stored([*parts, None, b"\xff" * 12]))
    assert not found.outputs
    assert found.rejected.total() == len(parts) + 2


def test_rich_events_are_classified_by_their_word_count() -> None:
    """Up to five words are brief; records without content, object or JSON are rejected, each at its own offset."""
    chosen = example("rich-events")
    contents = ["one two three four five", "1 2 3 4 5 6", "  ", None]
    events = [json.dumps({"id": number, "content": text, "at": "x"}).encode() for number, text in enumerate(contents)]
    found = chosen.expected(stored([*events, b"{", b"[]"]))
    assert set(found.outputs) == {"rich-events.brief/0/23/5", "rich-events.long/1/11/6"}
    assert set(found.rejected) == {Place("in", 0, offset) for offset in (2, 3, 4, 5)}


def test_a_window_is_expected_only_once_the_watermark_has_passed_it() -> None:
    """A minute counts when the latest event is at least the delay past its end, and not before."""
    chosen = example("windowed-counts")

    def said(at: str) -> bytes:
        return json.dumps({"at": f"2026-01-01T00:{at}Z", "lang": "en", "word": "yes"}).encode()

    first = [said("00:00.000"), said("00:59.999"), said("01:00.000")]
    assert not chosen.expected(stored([*first, said("01:29.999")])).outputs
    assert set(chosen.expected(stored([*first, said("01:30.000")])).outputs) == {"2026-01-01T00:00:00Z/en/yes=2"}


def test_words_are_less_out_of_order_than_the_watermark_allows() -> None:
    """No generated event is further behind the latest one before it than the pipeline's delay of 30 seconds."""
    module = load(example("windowed-counts").folder / "generate.py")
    expected = load(example("windowed-counts").folder / "expected.py")
    assert expected.DELAY.total_seconds() > module.DISORDER
