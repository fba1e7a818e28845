"""The demo: a Kafka, a pipeline that may be killed while it works, and the proof that each record came out once.

    feed        writes an example's input to Kafka, at a rate
    example     finds the examples, in a checkout and in an installed package
    driver      one driver process: its events, its end
    kills       when to kill, and how to kill a process tree
    batches     progress across successive drivers, added up from their events
    proof       compares actual with expected output, in plain Python
    spark       the same job with Spark's own Kafka sink, for comparison
    supervisor  runs all of this

Nothing here draws or prints; `tailrace.cli.demo` does. Importing this package imports none of its modules.
"""
