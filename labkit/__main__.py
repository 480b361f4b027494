"""``python -m labkit``: the command line without a script on the path."""

from labkit.cli import main

if __name__ == "__main__":
    main()
