"""A cluster simulated exactly, event by event, and the experiments that run in it."""
