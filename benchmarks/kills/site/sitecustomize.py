"""Clock that can be set back, in every Python process of a killed program.

The clock is read with an offset. The offset lies in a file that all of the program's processes map. A process
that is forked from another program calls `use` with its own file.
"""

import mmap
import os
import struct
import time

OFFSETS = []
READ = struct.Struct("d").unpack_from


def use(path):
    """Read the clock with the offset in this file."""
    with open(path, "r+b") as file:
        OFFSETS[:] = [mmap.mmap(file.fileno(), 8)]


def install(real=time.time, real_ns=time.time_ns):
    """Put the clock with an offset in the place of the clock."""

    def shifted():
        return real() + READ(OFFSETS[0])[0]

    def shifted_ns():
        return real_ns() + int(READ(OFFSETS[0])[0] * 1e9)

    time.time, time.time_ns = shifted, shifted_ns


if clock := os.environ.get("KILLS_CLOCK"):
    use(clock)
    install()
