"""What a driver knows of its pipeline, and shows: numbers for Prometheus, JSON for programs, a page for people.

Batches, Spark's own progress and the lag come in on one side (`board`), and the HTTP port shows them on the other
(`port`). Nothing here is waited for by a batch.
"""
