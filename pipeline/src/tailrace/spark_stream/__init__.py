"""Stateful pipelines: Spark plans their batches, and Tailrace follows."""
