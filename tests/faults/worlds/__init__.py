"""Worlds: random pipelines under random faults, each drawn from a seed and replayed from one line."""
