"""The formats of a record's value. Each is a class (`base`); `known` lists them.

The package sits below the stages, knows neither Kafka's records nor the sink's rows, and holds all of what runs in
Spark's Python workers on behalf of the stages.
"""

KEPT = "nothing was read or written"
