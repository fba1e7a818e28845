"""From `tailrace run` to a running loop: preflight, the Spark session, standby, and warm-up."""
