"""The pipeline's state as the driver shows it: metrics for Prometheus, JSON for programs, a page for people.

`board` collects batches, Spark's progress and the lag; the HTTP port (`port`) shows them. No batch ever waits for any
of this.
"""
