"""Figures, reports and traces, each made from recorded events."""
