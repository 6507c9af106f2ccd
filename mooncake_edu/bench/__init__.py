"""Measurements against peers, each in its own process and environment, and against what the hardware allows."""
