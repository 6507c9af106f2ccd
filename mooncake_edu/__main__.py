"""`python -m mooncake_edu` is the command line."""

from mooncake_edu.cli import main

if __name__ == "__main__":
    main()
