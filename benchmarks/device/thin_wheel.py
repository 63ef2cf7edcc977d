"""Makes a wheel with CUDA libraries small enough to carry: blanks the machine code of GPUs that it will not run on.

    python3 thin_wheel.py IN.whl OUT.whl --arch 90 --python cp312

A fat binary holds one entry for each GPU architecture; the driver picks the entry of the found GPU and never reads the
others. Their bytes become zeros, which compress to nothing, and every offset stays as it was: what runs is untouched.
Extension modules for other Python versions are left out, and with `--drop PATTERN` files whose path matches.
"""

from __future__ import annotations

import argparse
import re
import struct
import zipfile
from collections import Counter
from pathlib import Path

MAGIC = struct.pack("<IHH", 0xBA55ED50, 1, 16)
"""Start of a fat binary: magic, version 1, 16 bytes of header; then the size of all entries."""


def thin(library: bytes, arch: int) -> tuple[bytes, Counter[str]]:
    """The library with the payload of every entry blanked that is not machine code for `arch`; bytes by entry kind.

    An entry: kind (1 PTX, 2 ELF) u16 at 0, header bytes u32 at 4, payload bytes u64 at 8, architecture u32 at 28.
    Fat binaries without an entry for `arch` are left as they are.
    """
    out, found = bytearray(library), Counter[str]()
    at = library.find(MAGIC)
    while at >= 0:
        (total,) = struct.unpack_from("<Q", library, at + 8)
        entries, entry, end = [], at + 16, at + 16 + total
        while entry < end:
            kind, header, size = struct.unpack_from("<H2xIQ", library, entry)
            (sm,) = struct.unpack_from("<I", library, entry + 28)
            if kind not in (1, 2) or not 64 <= header <= 256 or entry + header + size > end:
                raise ValueError(f"unknown entry at byte {entry}: kind {kind}, header {header}, size {size}")
            entries.append((kind, sm, entry + header, size))
            entry += header + size
        if any(kind == 2 and sm == arch for kind, sm, *_ in entries):
            for kind, sm, start, size in entries:
                keep = kind == 2 and sm == arch
                found[f"{'kept' if keep else 'blanked'} {'ptx' if kind == 1 else 'sm'}_{sm}"] += size
                if not keep:
                    out[start : start + size] = bytes(size)
        else:
            found["no entry for this architecture, left alone"] += total
        at = library.find(MAGIC, end)
    return bytes(out), found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--arch", type=int, default=90)
    parser.add_argument("--python", default="cp312")
    parser.add_argument("--drop", type=re.compile, metavar="PATTERN", help="leave out files: a regular expression")
    args = parser.parse_args()
    tag = args.python.replace("cp", "cpython-")
    with zipfile.ZipFile(args.source) as source, zipfile.ZipFile(args.target, "w", zipfile.ZIP_LZMA) as target:
        for item in source.infolist():
            other = re.search(r"\.(cpython-\w+)-", item.filename)
            dropped = args.drop is not None and args.drop.search(item.filename)
            if item.is_dir() or dropped or (other and other[1] != tag):
                continue
            data = source.read(item)
            if ".so" in item.filename and MAGIC in data:
                data, found = thin(data, args.arch)
                print(item.filename, {kind: f"{size / 1e6:.1f} MB" for kind, size in sorted(found.items())})
            target.writestr(item.filename, data)
    print(f"{args.target.name}: {args.source.stat().st_size / 1e6:.1f} -> {args.target.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
