"""Where a program of an MPEG-TS file begins."""

from __future__ import annotations

from pathlib import Path

PACKET = 188
"""Bytes of a transport packet (ISO/IEC 13818-1, 2.4.3)."""
SYNC = 0x47
PROGRAM_TABLE = 0
"""PID of the program association table, from which a reader can start."""
SEARCHED = 1 << 20
"""Bytes in which a table is searched for. Broadcasts repeat it at least every half second."""


def next_program_table(path: Path, position: int) -> int | None:
    """Position of the first program association table after the transport packet at `position`."""
    with path.open("rb") as file:
        file.seek(position)
        data = file.read(SEARCHED)
    for at in range(0, len(data) - 2, PACKET):
        if data[at] != SYNC:
            return None
        if (data[at + 1] & 0x1F) << 8 | data[at + 2] == PROGRAM_TABLE and at:
            return position + at
    return None
