"""`python -m mooncake_edu`, and the script `mooncake-edu`, are the command line."""

import sys


def main() -> None:
    """Load the command line and run it; Ctrl-C ends it as quietly while it loads."""
    try:
        from mooncake_edu.cli import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
