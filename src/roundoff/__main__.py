"""`python -m roundoff` is the command line, also where its script is not on the path."""

from roundoff.cli import main

if __name__ == "__main__":
    main()
