"""Test helpers for pipelines: a real Kafka, topics of their own, records in and out, and crashes at named steps.

The fixtures are in `tailrace.testing.fixtures`, which pytest loads as a plugin. `crashes` makes the environment in
which a pipeline's processes die at named steps (`tailrace.crash_points`).
"""

from tailrace.crash_points import Crash, Point, Victim, crashes
from tailrace.testing.records import Consumed, Headers, Record, Topics, consume, produce, wait_until

__all__ = [
    "Consumed",
    "Crash",
    "Headers",
    "Point",
    "Record",
    "Topics",
    "Victim",
    "consume",
    "crashes",
    "produce",
    "wait_until",
]
