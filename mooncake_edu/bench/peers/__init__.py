"""The peers that are measured beside this project: pinned, each in a virtual environment of its own."""
