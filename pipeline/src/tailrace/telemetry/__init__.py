"""What driver and executors have in common where they let themselves be watched: counting, vital signs, a port.

`measure` keeps the values of the declared metrics, `vitals` and `jvm` look at processes and their garbage collections,
`serving` answers HTTP. None of it is in the way of a record: what is counted is counted once for a task or a batch.
"""
