"""A course that is also a working system: Mooncake, the KVCache-centric serving system, layer by layer."""

__version__ = "0.1.0"
