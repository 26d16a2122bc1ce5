"""`python -m libhamiregion` is `hamiregion`."""

from .cli import main

if __name__ == "__main__":
    main()
