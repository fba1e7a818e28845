"""Previews: what a pipeline would make of some records, without writing anything.

Tailrace's own stages process the records; this room only chooses records, runs the stages, and matches outputs with
their sources. The name is plural because `tailrace.preview` is the function.
"""
