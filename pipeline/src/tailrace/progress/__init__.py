"""What has been delivered, and how that is known: plans, markers, and the states of a sink partition."""
