"""The synthetic world: reproducible bytes, ground truth that matches the pixels, splits that share nothing."""

from __future__ import annotations

import hashlib
import pickle
import subprocess
import sys
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from framefuse.errors import UsageError
from framefuse.world import Snapshot, Truth, World
from framefuse.world.address import write
from framefuse.world.chance import BANK, OWNER, STRIPES, Chance, Split, texture
from framefuse.world.traffic import NAMES, Traffic

STREET = "synthetic://street?seed=7&frames=900&size=320x180&split=test"
BODIES = "synthetic://bodies?seed=4&frames=300&size=512x192&stereo=sbs&split=val"
FRAMES = (0, 250, 455, 899)


def digest(snapshot: Snapshot) -> str:
    truth = snapshot.truth
    arrays = [snapshot.image, truth.boxes, truth.class_id, truth.track_id, truth.visibility, truth.instances]
    arrays += [truth.class_mask, *([] if truth.disparity is None else [truth.disparity])]
    return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()


@pytest.mark.slow
@pytest.mark.parametrize("uri", [STREET, BODIES])
def test_same_bytes_in_any_order_any_world_and_any_process(uri: str) -> None:
    world = World.parse(uri)
    frames = [number * (world.frames - 1) // 3 for number in range(4)]
    forward = [digest(world[frame]) for frame in frames]
    backward = [digest(World.parse(uri)[frame]) for frame in reversed(frames)]
    assert forward == backward[::-1]
    assert forward == [digest(pickle.loads(pickle.dumps(world))[frame]) for frame in frames]
    code = (
        f"import sys; sys.path[:0] = {sys.path!r}; from test_synthetic import *; "
        f"w = World.parse({uri!r}); print(*(digest(w[i]) for i in {frames}))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == forward
    assert len(set(forward)) == len(forward)


@pytest.mark.parametrize("uri", [STREET, BODIES])
def test_truth_is_what_the_masks_say(uri: str) -> None:
    world = World.parse(uri)
    for frame in range(0, world.frames, 50):
        truth = world[frame].truth
        count = len(truth.boxes)
        assert truth.instances.max(initial=0) == count == len(truth.class_id) == len(truth.visibility)
        assert truth.boxes.dtype == np.float32 and truth.class_id.dtype == np.int64
        for row, box in enumerate(truth.boxes):
            y, x = np.nonzero(truth.instances == row + 1)
            assert box.tolist() == [x.min(), y.min(), x.max() + 1, y.max() + 1]
            if world.scene == "street":
                assert np.all(truth.class_mask[y, x] == truth.class_id[row] + 1)
        assert np.all((truth.class_mask > 0) == (truth.instances > 0))
        assert truth.class_mask.max() < 11
        assert np.all((truth.visibility > 0) & (truth.visibility <= 1.0))
        if world.stereo == "none":
            assert len(set(truth.track_id.tolist())) == count


def test_an_object_keeps_its_identity_and_moves_smoothly() -> None:
    world = World.parse(STREET)
    last: Truth | None = None
    for frame in range(440, 450):
        truth = world[frame].truth
        for row, track in enumerate(truth.track_id):
            before = np.flatnonzero(last.track_id == track) if last is not None else np.array([], int)
            if last is not None and before.size and min(truth.visibility[row], last.visibility[before[0]]) > 0.97:
                assert truth.class_id[row] == last.class_id[before[0]]
                moved = np.abs(truth.boxes[row] - last.boxes[before[0]]).max()
                assert moved < 0.2 * world.size[1], f"track {track} jumped by {moved} pixels in frame {frame}"
        last = truth


def test_the_schedule_goes_from_calm_to_crowded_and_back() -> None:
    world = World.parse(STREET)
    truths = {frame: world[frame].truth for frame in (0, 450, 899)}
    assert truths[0].complexity < 0.1 and truths[899].complexity < 0.3 and truths[450].complexity > 0.9
    assert len(truths[0].boxes) <= 4 and len(truths[899].boxes) <= 12 < len(truths[450].boxes)
    areas = {frame: np.median(np.prod(t.boxes[:, 2:] - t.boxes[:, :2], axis=1)) for frame, t in truths.items()}
    assert areas[0] > 4 * areas[450]
    assert len(World.parse(STREET + "&complexity=1")[450].truth.boxes) > 12
    assert len(World.parse(STREET + "&complexity=0")[450].truth.boxes) <= 4


@pytest.mark.parametrize("seed", range(6))
def test_calm_objects_are_large_and_slow_and_never_in_each_others_way(seed: int) -> None:
    world = World.parse(STREET.replace("seed=7", f"seed={seed}") + "&complexity=0")
    width, height = world.size
    for frame in range(0, world.frames, 90):
        truth, after = world[frame].truth, world[frame + 1].truth
        inside = (truth.boxes > 0).all(1) & (truth.boxes < (width, height, width, height)).all(1)
        assert np.all(truth.visibility[inside] == 1)
        assert np.all((truth.boxes[inside, 2:] - truth.boxes[inside, :2]).max(1) > 0.45 * height)
        for track in set(truth.track_id[inside].tolist()) & set(after.track_id.tolist()):
            moved = after.boxes[after.track_id == track] - truth.boxes[truth.track_id == track]
            # Limbs swing, but the mean speed of the four edges is that of the background.
            assert abs(moved.mean()) < 0.05 * height


def test_the_scene_does_not_depend_on_the_resolution() -> None:
    small, large = (World.parse(STREET.replace("320x180", size))[455].truth for size in ("320x180", "960x540"))
    both = sorted(set(small.track_id.tolist()) & set(large.track_id.tolist()))
    assert len(both) >= len(small.track_id) - 1
    for track in both:
        boxes = [truth.boxes[truth.track_id == track][0] for truth in (small, large)]
        seen = min(truth.visibility[truth.track_id == track][0] for truth in (small, large))
        if seen > 0.9:
            assert np.abs(3 * boxes[0] - boxes[1]).max() <= 6


def test_every_class_comes_up() -> None:
    found: set[int] = set()
    for seed in range(3):
        world = World(seed=seed, frames=900, size=(160, 90), split="val")
        for frame in range(300, 600, 60):
            found |= set(world[frame].truth.class_id.tolist())
    assert found == set(range(len(NAMES)))


def test_splits_share_no_style_texture_or_schedule() -> None:
    splits: tuple[Split, ...] = ("train", "val", "test")
    for split in splits:
        chance = Chance(split, "any")
        assert {OWNER[int(chance.style() * STRIPES) % len(OWNER)] for _ in range(500)} == {split}
    banks = {split: {texture(split, n).levels[0].tobytes() for n in range(BANK)} for split in splits}
    assert all(len(bank) == BANK for bank in banks.values())
    assert not banks["train"] & banks["test"] and not banks["train"] & banks["val"] and not banks["val"] & banks["test"]
    ramps = {split: {Traffic(World(split=split, seed=seed), 16 / 9)._ramp for seed in range(20)} for split in splits}
    assert not ramps["train"] & ramps["test"] and not ramps["val"] & ramps["test"]
    images = {digest(World(seed=3, size=(160, 90), split=split)[450]) for split in splits}
    assert len(images) == 3


def test_stereo_disparity_moves_the_left_eye_onto_the_right() -> None:
    world = World.parse(BODIES)
    truth = world[150].truth
    half = world.size[0] // 2
    assert truth.disparity is not None and truth.disparity.shape == truth.instances.shape
    for track in set(truth.track_id.tolist()):
        rows = np.flatnonzero(truth.track_id == track)
        if len(rows) == 2 and truth.visibility[rows].min() > 0.9:
            left, right = truth.boxes[rows[0]], truth.boxes[rows[1]] - np.array([half, 0, half, 0])
            shift = truth.disparity[truth.instances == rows[0] + 1]
            assert np.all(shift == shift[0])
            assert np.abs(left[[0, 2]] - shift[0] - right[[0, 2]]).max() <= 1.5
    behind = truth.disparity[:, :half][truth.instances[:, :half] == 0]
    assert np.all(behind == behind[0]) and behind[0] > 0


def test_visibility_is_less_for_what_is_hidden_or_cut_off() -> None:
    world = World.parse(STREET)
    seen = np.concatenate([world[frame].truth.visibility for frame in range(400, 500, 10)])
    assert (seen < 0.5).any() and (seen == 1).any()
    ignored = np.concatenate([world[frame].truth.ignored for frame in range(400, 500, 10)])
    assert np.all(ignored[seen < 0.25])


def test_address_and_arguments_mean_the_same() -> None:
    world = World(scene="street", seed=7, frames=900, size=(320, 180), fps=Fraction(30), split="test")
    assert World.parse(STREET) == world == World.parse(write(world))
    assert World.parse("synthetic://street?fps=30000/1001").fps == Fraction(30000, 1001)
    assert World.parse("synthetic://street?fps=29.97").fps == Fraction("29.97")
    assert world.names[0] == "person" and len(world.names) == 10
    assert World.parse(BODIES).names[1] == "head" and len(World.parse(BODIES).names) == 8
    assert len(world) == 900
    with pytest.raises(IndexError, match="frame 900"):
        world[900]
    assert digest(world[-1]) == digest(world[899])


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("synthetic://street?sead=7", "did you mean seed"),
        ("synthetic://stret", "did you mean street"),
        ("synthetic://street?seed=x", "seed is a whole number"),
        (f"synthetic://street?seed={10**20}", "at most 18 digits"),
        ("synthetic://street?frames=2#seed=3", "separate them by &"),
        ("synthetic://street?seed=-1", "seed is a whole number"),
        ("synthetic://street?seed=1&seed=2", "given twice"),
        ("synthetic://street?size=640", "WIDTHxHEIGHT"),
        ("synthetic://street?size=641x360", "even"),
        ("synthetic://street?size=16x16", "32..8192"),
        ("synthetic://street?size=640x99998", "32..8192"),
        ("synthetic://street?frames=0", "frames=0 is out of range"),
        ("synthetic://street?fps=0", "fps=0 is out of range"),
        ("synthetic://street?fps=1/0", "fps is a number"),
        ("synthetic://street?fps=1e99999999", "fps is a number"),
        ("synthetic://[", "is not a synthetic:// address"),
        ("synthetic://\u2100", "is not a synthetic:// address"),
        ("synthetic://street?split=tset", "did you mean test"),
        ("synthetic://street?complexity=2", "0 .calm. .. 1"),
        ("synthetic://street?complexity=nan", "complexity is a number"),
        ("synthetic://street?stereo=sbs", "synthetic://bodies"),
        ("synthetic://bodies?stereo=tb", "stereo=tb is unknown"),
        ("synthetic://bodies?stereo=sbs&size=642x360", "multiple of 4"),
        ("http://street", "not a synthetic:// address"),
    ],
)
def test_bad_addresses_say_what_is_right(uri: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        World.parse(uri)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scene": 3}, "scene=3 is unknown"),
        ({"seed": "x"}, "seed='x' is invalid"),
        ({"seed": -1}, "seed=-1 is invalid"),
        ({"seed": 1.5}, r"seed=1\.5 is invalid"),
        ({"frames": "x"}, "frames='x' is invalid"),
        ({"frames": True}, "frames=True is invalid"),
        ({"size": (640,)}, r"size=\(640,\) is not a size"),
        ({"size": (640.0, 480)}, r"size=\(640\.0, 480\) is not a size"),
        ({"size": None}, "size=None is not a size"),
        ({"size": "640x480"}, "size='640x480' is not a size"),
        ({"fps": "x"}, "fps='x' is not a frame rate"),
        ({"fps": None}, "fps=None is not a frame rate"),
        ({"complexity": "x"}, "complexity=x is out of range"),
        ({"split": []}, "is unknown"),
    ],
)
def test_values_of_the_wrong_kind_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        World(**options)
    assert caught.value.remedy


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # pycocotools' own
def test_colour_alone_finds_nothing() -> None:
    from benchmarks.cpu.synthetic import baseline

    scores = baseline(train_worlds=10, test_worlds=4)
    assert len(scores) == 2 and max(scores.values()) < 0.15


@pytest.mark.parametrize(
    "changes",
    [
        {"size": (32, 32)},
        {"size": (90, 160)},
        {"size": (2048, 32)},
        {"frames": 1},
        {"frames": 2, "fps": 1000},
        {"frames": 10_000_000},
        {"scene": "bodies", "size": (36, 34), "stereo": "sbs"},
    ],
)
def test_awkward_worlds(changes: dict[str, Any]) -> None:
    world = World(**({"size": (160, 90), "seed": 9} | changes))
    snapshot = world[world.frames // 2]
    assert snapshot.image.shape == (world.size[1], world.size[0], 3)
    assert len(list(World(frames=3, size=(160, 90)))) == 3


def test_many_seeds() -> None:
    """Many seeds, to reach rare cases."""
    for seed in range(10_000, 10_060):
        world = World(seed=seed, size=(160, 90), split="val")
        assert world[seed % 900].truth.boxes.shape[1] == 4


@pytest.mark.parametrize(
    ("uri", "objects", "light"),
    [
        (
            STREET,
            [
                (33, 7, [276, 75, 288, 87]), (34, 2, [63, 132, 80, 139]), (1, 2, [231, 102, 320, 178]),
                (27, 3, [0, 101, 26, 176]), (28, 8, [91, 80, 197, 180]),
            ],
            [[137, 126, 138, 132], [111, 107, 111, 115], [112, 74, 104, 89]],
        ),
        (
            BODIES,
            [
                (4, 0, [0, 0, 87, 192]), (3, 0, [196, 5, 256, 192]), (1, 0, [59, 0, 231, 192]),
                (4, 0, [256, 0, 336, 192]), (3, 0, [444, 5, 512, 192]), (1, 0, [306, 0, 478, 192]),
            ],
            [[84, 101, 84, 101], [89, 100, 92, 100], [107, 96, 107, 96]],
        ),
    ],
)  # fmt: skip
def test_version_5_is_pinned(uri: str, objects: list[tuple[int, int, list[int]]], light: list[list[int]]) -> None:
    """A change of appearance requires a new World.version, new values here, and new scores of the shipped models."""
    assert World.version == 5
    world = World.parse(uri)
    snapshot = world[world.frames // 4]
    truth, image = snapshot.truth, snapshot.image
    assert [(int(t), int(c)) for t, c in zip(truth.track_id, truth.class_id, strict=True)] == [o[:2] for o in objects]
    assert np.abs(truth.boxes - np.array([box for _, _, box in objects])).max() <= 1
    height, width = image.shape[0] // 3, image.shape[1] // 4
    parts = image[: 3 * height, : 4 * width].reshape(3, height, 4, width, 3).mean((1, 3, 4))
    assert np.abs(parts - np.array(light)).max() <= 1.5


def test_a_farther_camera_sees_more_and_smaller_objects() -> None:
    address = STREET.replace("320x180", "1280x720") + "&complexity=1"
    near, far = (World.parse(address + more)[450].truth for more in ("", "&far=4&density=6"))
    assert len(far.boxes) > 3 * len(near.boxes)
    sides = [np.median((truth.boxes[:, 2:] - truth.boxes[:, :2]).max(1)) for truth in (near, far)]
    assert 2.5 < sides[0] / sides[1] < 6
    middles = (far.boxes[:, 1] + far.boxes[:, 3]) / 2
    assert (middles < 360).any() and (middles > 540).any(), "they are everywhere on the ground"
    world = World.parse(STREET + "&far=4&density=6")
    moved = []
    for before, after in ((world[450].truth, world[451].truth),):
        for track in set(before.track_id.tolist()) & set(after.track_id.tolist()):
            boxes = [truth.boxes[truth.track_id == track][0] for truth in (before, after)]
            moved.append(abs(boxes[1].mean() - boxes[0].mean()))
    assert np.median(moved) < 2, "and slower"


def test_far_and_density_are_in_the_address() -> None:
    world = World.parse(STREET + "&far=8&density=2.5")
    assert World.parse(write(world)) == world and "&far=8.0&density=2.5" in write(world)
    assert write(World.parse(STREET + "&far=1")) == write(World.parse(STREET))


@pytest.mark.parametrize("bad", ["far=0.5", "far=17", "far=nan", "density=33", "density=-1", "density=many"])
def test_far_and_density_out_of_range(bad: str) -> None:
    with pytest.raises(UsageError, match=bad.split("=")[0]):
        World.parse(f"{STREET}&{bad}")


def test_only_the_street_has_a_farther_camera() -> None:
    with pytest.raises(UsageError, match="bodies"):
        World.parse(f"{BODIES}&far=2")


def test_objects_move_as_fast_as_pace_says() -> None:
    def speed(address: str) -> float:
        world = World.parse(address + "&complexity=1")
        places = []
        for truth in (world[450].truth, world[453].truth):
            places.append(dict(zip(truth.track_id.tolist(), truth.boxes[:, ::2].mean(1), strict=True)))
        common = set(places[0]) & set(places[1])
        return float(np.quantile([abs(places[0][number] - places[1][number]) for number in common], 0.8))

    assert speed(STREET + "&pace=3") > 1.7 * speed(STREET)


def test_a_day_is_mostly_empty_and_its_camera_stands_still() -> None:
    world = World.parse("synthetic://street?seed=3&frames=900&size=320x240&split=test&schedule=day")
    counts = [len(world[number].truth.boxes) for number in range(0, 900, 10)]
    assert np.mean([count <= 3 for count in counts]) > 0.6
    assert max(counts) >= 8
    empty = [number * 10 for number, count in enumerate(counts) if count == 0]
    one, other = (world[number].image.astype(int) for number in empty[:2])
    assert np.median(abs(one - other)) <= 6


def test_pace_and_schedule_are_in_the_address() -> None:
    world = World.parse(STREET + "&pace=2&schedule=day")
    assert World.parse(write(world)) == world
    assert "&pace=2.0&schedule=day" in write(world)


@pytest.mark.parametrize("bad", ["pace=0.5", "pace=9", "schedule=night", "schedule=day&complexity=1"])
def test_pace_and_schedule_out_of_range(bad: str) -> None:
    with pytest.raises(UsageError, match=bad.partition("=")[0]):
        World.parse(STREET + "&" + bad)


def test_a_joint_at_the_right_edge_of_the_right_eye() -> None:
    """It stays inside, although its place is rounded to the edge itself."""
    world = World(scene="bodies", seed=3, frames=600, size=(960, 480), stereo="sbs")
    points = world[306].truth.keypoints
    assert 959.9 < points[points[..., 2] > 0][:, 0].max() < 960


@pytest.mark.parametrize("uri", [STREET, BODIES])
def test_keypoints_are_where_people_are(uri: str) -> None:
    world = World.parse(uri)
    seen = 0
    for frame in range(0, world.frames, world.frames // 12):
        truth = world[frame].truth
        for row, points in enumerate(truth.keypoints):
            y, v = points.T[1:]
            assert set(v) <= {0, 1, 2} and not points[v == 0].any()
            inside = points[v == 2].astype(int)
            assert (truth.instances[inside[:, 1], inside[:, 0]] == row + 1).all()
            hidden = points[v == 1].astype(int)
            assert (truth.instances[hidden[:, 1], hidden[:, 0]] != row + 1).all()
            if truth.class_id[row] != 0:
                assert not v.any()
            elif v.all():
                seen += 1
                assert y[5] < y[11] < y[15]  # shoulder, hip and ankle, downwards
    assert seen > 3


def test_left_stays_left_in_a_mirrored_track() -> None:
    """Seen from the front, a person's left shoulder is on the right of the image, and the two hips are near each
    other; both eyes see the same."""
    world, orders = World.parse(BODIES), set()
    for frame in range(0, world.frames, 20):
        truth = world[frame].truth
        for number in set(truth.track_id.tolist()):
            rows = np.flatnonzero(truth.track_id == number)
            order = [np.sign(truth.keypoints[row, 5, 0] - truth.keypoints[row, 6, 0]) for row in rows
                     if truth.keypoints[row, [5, 6], 2].all()]  # fmt: skip
            assert len(set(order)) <= 1
            orders |= set(order)
    assert orders == {-1, 1}  # some look towards the camera, some away


def test_oriented_boxes_are_the_smallest_rectangles() -> None:
    cv2 = pytest.importorskip("cv2")
    truth = World.parse(STREET)[455].truth
    assert len(truth.boxes) > 10
    for row, corners in enumerate(truth.corners.astype(float)):
        y, x = np.nonzero(truth.instances == row + 1)
        pixels = np.concatenate([np.stack([x + i, y + j], 1) for i in (0, 1) for j in (0, 1)]).astype(np.float32)
        sides = np.roll(corners, -1, 0) - corners
        lengths = np.hypot(*sides.T)
        assert abs((sides[0] * sides[1]).sum()) < 1e-2 * lengths.prod() ** 0.5
        ours, theirs = lengths[0] * lengths[1], float(np.prod(cv2.minAreaRect(pixels)[1]))
        assert ours <= theirs * 1.001 + 0.01
        normals = np.stack([-sides[:, 1], sides[:, 0]], 1) / lengths[:, None]
        assert ((pixels[:, None] - corners) * normals).sum(-1).min() > -0.01  # every pixel is inside
