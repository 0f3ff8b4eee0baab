"""Clock that can be set back, in every Python process of a killed program.

The clock is read with an offset. The offset lies in a file that all of the program's processes map.
"""

import mmap
import os
import struct
import time

if clock := os.environ.get("KILLS_CLOCK"):
    with open(clock, "r+b") as file:
        OFFSET = mmap.mmap(file.fileno(), 8)
    READ = struct.Struct("d").unpack_from

    def shifted(real=time.time, offset=OFFSET, read=READ):
        return real() + read(offset)[0]

    def shifted_ns(real=time.time_ns, offset=OFFSET, read=READ):
        return real() + int(read(offset)[0] * 1e9)

    time.time, time.time_ns = shifted, shifted_ns
