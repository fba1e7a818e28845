"""The demo: a Kafka, a pipeline that may be killed while it works, and the proof that each record came out once.

    feed        writes an example's input to Kafka, at a rate
    example     finds the examples, in a checkout and in an installed package
    driver      one driver process: its events, its end
    kills       when a kill is due, and how a whole process tree is killed
    batches     what the events of several drivers, one after the other, add up to
    proof       compares what came out with what must, in plain Python
    spark       the same job with Spark's own Kafka sink, for comparison
    supervisor  puts all this together

Nothing here draws or prints; `tailrace.cli.demo` does. Importing this package imports none of its modules.
"""
