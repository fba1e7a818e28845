"""Whether the records that were read are those of the plan's topics, and not of newer ones of the same name.

librdkafka goes on at the same offset if a topic is deleted and created again. A topic's id never comes back, so an id
that is right after the last record was right for every record. The question costs a request for each task.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping
from typing import Any

from confluent_kafka.admin import AdminClient

from tailrace import errors
from tailrace.kafka.clients import ANSWER_LIMIT
from tailrace.kafka.topics import recreation, topic_ids, ways_on

_KEPT = "everything that was delivered; nothing of this batch is delivered in part"
_AGAIN = "start the pipeline again: it reads the new topic from its beginning"
# A start asks for long enough to tell a former id, of a broker that lags, from one of a new topic.
_REPEAT = "start the pipeline again; if it is refused too, "
_TRY = ANSWER_LIMIT  # seconds after which another client asks


class SourceIds:
    """The ids of one pipeline's source topics. Tasks that end together share an answer."""

    def __init__(self, options: Mapping[str, Any], limit: float) -> None:
        self._options, self._limit = dict(options), limit
        self._lock = threading.Lock()
        self._admin: AdminClient | None = None
        self._asked = -math.inf
        self._names: frozenset[str] = frozenset()
        self._known: dict[str, str] = {}

    def require(self, planned: Mapping[str, str], *, reset: bool) -> None:
        """Raise unless what was read until now came from the topics with these ids.

        With `reset`, a topic may be gone: what is missing of it was counted as lost.
        """
        if not planned:
            return
        known = self.after(time.monotonic(), frozenset(planned))
        again = [topic for topic, name in planned.items() if known.get(topic, name) != name]
        if again:
            when = "while a batch was read"
            raise recreation(again, when, _KEPT, _AGAIN if reset else f"{_REPEAT}{ways_on(again)}")
        gone = sorted(planned.keys() - known.keys())
        if gone and not reset:
            raise errors.SourceChanged(
                f"the source topic {', '.join(gone)} was deleted while a batch was read",
                kept=_KEPT,
                then="restore the topic, or set source.on_data_loss: reset to continue without it",
            )

    def after(self, moment: float, names: frozenset[str]) -> Mapping[str, str]:
        """Return the ids of an answer that was asked for after this moment."""
        with self._lock:
            if self._asked < moment or not names <= self._names:
                asked, found = self._answer(names)
                self._known = {topic: name for topic, (name, _) in found.items()}
                self._asked, self._names = asked, names
            return self._known

    def _answer(self, names: frozenset[str]) -> tuple[float, dict[str, tuple[str, int]]]:
        """Return when the ids were asked for, and the answer.

        A client that has heard of no broker, as when the controller missed all of them, has nobody left to ask.
        """
        end = time.monotonic() + self._limit
        while True:
            if self._admin is None:
                self._admin = AdminClient(self._options)
            asked = time.monotonic()
            try:
                return asked, topic_ids(self._admin, names, min(_TRY, end - asked))
            except errors.TailraceError:
                self._admin = None
                now = time.monotonic()
                if now < asked + _TRY or now >= end:  # refused, or out of time
                    raise
