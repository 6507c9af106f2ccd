"""Traces of real and made requests: read, checked, summarised, made, sanitised and fetched."""
