"""``python -m proxemics`` is the same as ``proxemics``."""

from proxemics.cli.main import main

if __name__ == "__main__":
    main()
