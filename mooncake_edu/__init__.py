"""A course that is also a working system: Mooncake, the KVCache-centric serving system, layer by layer."""

import importlib
import os

__version__ = "0.1.0"

if os.environ.get("MOONCAKE_EDU_LAYERS"):
    importlib.import_module("mooncake_edu.layers").replace()
