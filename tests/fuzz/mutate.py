"""Damage to bytes, repeatable from a seed."""

from __future__ import annotations

import re
from random import Random

NAME = re.compile(rb"[0-9A-Za-z ]{4}")
NUMBERS = (0, 1, 2, 127, 128, 255, 256, 32767, 32768, 65535, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1)
WORDS = (
    b"-1", b"0", b"1e999", b"nan", b"null", b"true", b"[", b"]", b"{", b"}", b'"', b"'", b"\\", b"\n", b":", b"&a",
    b"*a", b"!!python/object:os.system", b"../..", b"\x00", b"\xff\xfe", b"\xe9", b"%s%n", b"=", b"9" * 400,
)  # fmt: skip


def mutated(content: bytes, random: Random) -> bytes:
    """The content with one to eight damages: bytes changed, inserted, removed, repeated, swapped, or cut off."""
    data = bytearray(content)
    for _ in range(random.choice((1, 1, 2, 4, 8))):
        random.choice(DAMAGES)(data, random)
    return bytes(data)


def _place(data: bytearray, random: Random) -> int:
    """Headers matter most, so half of all damage is near the beginning."""
    size = max(1, len(data))
    return random.randrange(min(size, 256)) if random.random() < 0.5 else random.randrange(size)


def _flip(data: bytearray, random: Random) -> None:
    if data:
        data[_place(data, random)] ^= 1 << random.randrange(8)


def _byte(data: bytearray, random: Random) -> None:
    if data:
        data[_place(data, random)] = random.randrange(256)


def _number(data: bytearray, random: Random) -> None:
    size = random.choice((1, 2, 4, 8))
    value = random.choice(NUMBERS) % (1 << 8 * size)
    place = _place(data, random)
    data[place : place + size] = value.to_bytes(size, random.choice(("big", "little")))


def _word(data: bytearray, random: Random) -> None:
    place = _place(data, random)
    data[place : place + random.choice((0, 0, 1, 4))] = random.choice(WORDS)


def _remove(data: bytearray, random: Random) -> None:
    place = _place(data, random)
    del data[place : place + random.choice((1, 4, 64, 4096))]


def _repeat(data: bytearray, random: Random) -> None:
    place = _place(data, random)
    data[place:place] = data[place : place + random.choice((1, 8, 256))] * random.choice((1, 2, 50))


def _swap(data: bytearray, random: Random) -> None:
    first, second, size = _place(data, random), _place(data, random), random.choice((4, 32, 1024))
    data[first : first + size], data[second : second + size] = data[second : second + size], data[first : first + size]


def _length(data: bytearray, random: Random) -> None:
    """Boxes and chunks of most formats have a number on one side of a name in four letters."""
    if names := [found.start() for found in NAME.finditer(data)]:
        place = max(0, random.choice(names) + random.choice((-4, 4)))
        data[place : place + 4] = (random.choice(NUMBERS) % 2**32).to_bytes(4, random.choice(("big", "little")))


def _cut(data: bytearray, random: Random) -> None:
    del data[_place(data, random) :]


DAMAGES = (_flip, _flip, _byte, _byte, _number, _number, _word, _word, _remove, _repeat, _swap, _cut, _length, _length)
