"""Delivery progress and its proof: plans, markers, and the states of a sink partition."""
