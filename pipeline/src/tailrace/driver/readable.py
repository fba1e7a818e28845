"""The end of a bounded run: wait until a read_committed reader gets what the run has written.

The brokers answer a commit before they have written its control records, and until then a reader does not get the
records. Who starts this run and then a reader, such as a chain of scheduled jobs or a test, would miss the last ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from tailrace import errors
from tailrace.config import Delivery
from tailrace.driver.context import Context
from tailrace.kafka.clients import TopicPartitions
from tailrace.status.events import Noted

LIMIT = 10.0  # seconds; a transaction of another producer may be open for longer
_EVERY = 0.02


def wait(
    context: Context, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], object] = time.sleep
) -> None:
    """Wait until the topics that were written can be read to their present ends; after the limit, say which cannot."""
    pipeline, cluster = context.pipeline, context.cluster
    if pipeline.sink.delivery is Delivery.AT_LEAST_ONCE:
        return
    until = clock() + LIMIT
    try:
        known, named = cluster.topics(), {*pipeline.sink.named, pipeline.rejected_topic}
        places = [(topic, number) for topic in sorted(named & known.keys()) for number in range(known[topic])]
        ends = cluster.latest(places)
        while ends := _behind(cluster.latest(ends, committed=True), ends):
            if context.stop.event.is_set():
                return
            if clock() >= until:
                (topic, partition), more = min(ends), len(ends) - 1
                context.emit(
                    Noted(
                        f"after {LIMIT:.0f} s an open transaction still hides the end of {topic}-{partition}"
                        f"{f' and of {more} more' if more else ''} from readers; this run's is committed"
                    )
                )
                return
            sleep(_EVERY)
    except errors.KafkaError as error:  # everything is delivered, and that is what counts
        context.emit(Noted(f"whether readers get the last records already is not known: {error.what}"))


def _behind(readable: TopicPartitions, ends: TopicPartitions) -> TopicPartitions:
    return {place: end for place, end in ends.items() if readable.get(place, end) < end}
