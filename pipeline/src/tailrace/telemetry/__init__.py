"""Monitoring shared by the driver and the executors: metrics, process vitals, an HTTP port.

`measure` keeps the values of the declared metrics, `vitals` and `jvm` watch processes and their garbage collections,
`serving` answers HTTP. No record waits for any of it: counts are taken once per task or batch.
"""
