"""Arrays and Pillow images as sources, alone, stacked, in lists and from generators."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

import media
from framefuse import FrameFeed
from framefuse.errors import SourceError, UsageError
from framefuse.sources import SourceOptions, open_source
from framefuse.sources.images import open_arrays
from reading import read


class TestArrays:
    def test_bgr_in_place(self) -> None:
        image = media.rgb_image(0)
        (frame,), info = read(image)
        assert frame.format.name == "bgr24"
        assert frame.planes[0].ctypes.data == image.ctypes.data
        assert (info.kind, info.width, info.height, info.frames) == ("array", 64, 48, 1)

    @pytest.mark.parametrize(
        ("shape", "dtype", "name"),
        [
            ((5, 7), np.uint8, "gray"),
            ((5, 7, 1), np.uint8, "gray"),
            ((5, 7), np.uint16, "gray16"),
            ((5, 7, 4), np.uint8, "bgra"),
        ],
    )
    def test_kinds(self, shape: tuple[int, ...], dtype: Any, name: str) -> None:
        (frame,), _ = read(np.zeros(shape, dtype))
        assert (frame.format.name, frame.width, frame.height) == (name, 7, 5)

    def test_stack(self) -> None:
        stack = np.stack([media.rgb_image(number) for number in range(5)])
        frames, info = read(stack, vid_stride=2)
        assert [frame.index for frame in frames] == [0, 2, 4]
        assert info.frames == 3
        np.testing.assert_array_equal(frames[2].planes[0], stack[4])

    def test_mixed_sizes_in_a_list(self) -> None:
        frames, _ = read([media.rgb_image(0, 20, 10), Image.fromarray(media.rgb_image(1, 30, 15)), media.rgb_image(2)])
        assert [(frame.width, frame.format.name) for frame in frames] == [(20, "bgr24"), (30, "rgb24"), (64, "bgr24")]

    def test_only_the_first_image_is_made_in_advance(self) -> None:
        made: list[int] = []

        class Made:
            def __len__(self) -> int:
                return 5

            def __getitem__(self, number: int) -> NDArray[np.uint8]:
                if number >= len(self):
                    raise IndexError
                made.append(number)
                return np.zeros((8, 8 + number, 3), np.uint8)

        source = open_arrays(Made(), SourceOptions())
        assert made == [0]
        assert len(list(source)) == 5

    def test_views_and_read_only_arrays(self) -> None:
        image = media.rgb_image(0)
        np.testing.assert_array_equal(read(image[:, ::-1])[0][0].planes[0], image[:, ::-1])
        image.flags.writeable = False
        plane = read(image)[0][0].planes[0]
        assert np.shares_memory(plane, image)
        np.testing.assert_array_equal(plane, image)

    def test_generators_are_pulled_lazily(self) -> None:
        pulled = []

        def images() -> Iterator[NDArray[Any]]:
            for number in range(100):
                pulled.append(number)
                yield media.rgb_image(number)

        source = open_source(images())
        assert pulled == []
        assert source.info.frames is None
        iterator = iter(source)
        assert [next(iterator).index for _ in range(3)] == [0, 1, 2]
        assert pulled == [0, 1, 2]
        source.close()
        assert list(source) == []

    def test_errors_of_the_generator_come_through(self) -> None:
        def images() -> Iterator[NDArray[Any]]:
            yield media.rgb_image(0)
            raise KeyError("mine")

        source = open_source(images())
        next(iter(source))
        with pytest.raises(KeyError, match="mine"):
            next(iter(source))
        assert list(source) == []

    @pytest.mark.parametrize(
        "source",
        [np.zeros((4, 4, 3), np.float32), np.zeros((4, 4, 5), np.uint8), [1, 2], {"a": 1}, iter([Path("a.png")])],
    )
    def test_not_images(self, source: Any) -> None:
        with pytest.raises(UsageError):
            read(source)

    @pytest.mark.parametrize("source", [None, 3.5, True, object()])
    def test_not_sources(self, source: Any) -> None:
        with pytest.raises(UsageError, match="is not a source of frames"):
            open_source(source)

    @pytest.mark.parametrize("source", [[], np.zeros((0, 4, 4, 3), np.uint8)])
    def test_nothing(self, source: Any) -> None:
        with pytest.raises(SourceError, match="no images"):
            open_source(source)

    def test_times_do_not_apply_and_it_says_so(self) -> None:
        frames, info = read([media.rgb_image(0)], start=1.0)
        assert len(frames) == 1
        assert info.notes == ["start and end are ignored: arrays have no timestamps"]


def test_only_frames_that_come_one_by_one_are_awaited() -> None:
    image = np.zeros((8, 8, 3), np.uint8)
    for given in (image, [image, image], np.stack([image, image])):
        assert not open_source(given).info.awaited
    for source in (open_source(each for each in [image]), FrameFeed(), FrameFeed(live=True)):
        assert source.info.awaited
