"""A consumer that is replaced once it hears nothing: it may know no broker any more, and then it never asks again.

librdkafka forgets each broker that an answer does not list, and brokers that were all suspended list none of themselves
for a moment. A batch that fails has new clients; a thread that only looks has to make its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from confluent_kafka import Consumer


class Listening:
    """The consumer of one thread, which reports after each question whether it was answered."""

    def __init__(self, options: Mapping[str, Any], most: int) -> None:
        self._options, self._most = dict(options), most
        self._unheard = 0  # questions in a row without any answer
        self.consumer = Consumer(self._options)

    def heard(self, anything: bool) -> None:
        """Note whether there was an answer, be it that there is nothing; replace the consumer after `most` without."""
        self._unheard = 0 if anything else self._unheard + 1
        if self._unheard >= self._most:
            self.consumer.close()
            self.consumer, self._unheard = Consumer(self._options), 0

    def close(self) -> None:
        """Close the connections."""
        self.consumer.close()
