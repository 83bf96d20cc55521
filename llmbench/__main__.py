"""`python -m llmbench`."""

from llmbench.cli import main

if __name__ == "__main__":
    main()
