"""Entry point of `python -m trainkit`, which is equivalent to the command `trainkit`."""

from trainkit.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
