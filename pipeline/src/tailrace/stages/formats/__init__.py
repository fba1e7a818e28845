"""The formats of a record's value: what decode and encode both have to know of Avro and of JSON models.

The package sits below the stages, knows neither Kafka's records nor the sink's rows, and holds all of what runs in
Spark's Python workers on behalf of the stages.
"""
