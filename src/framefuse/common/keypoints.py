"""The keypoints of people as COCO annotates them, and the lines between them."""

COCO_KEYPOINTS = (
    *("nose", "left_eye", "right_eye", "left_ear", "right_ear", "left_shoulder", "right_shoulder", "left_elbow"),
    *("right_elbow", "left_wrist", "right_wrist", "left_hip", "right_hip", "left_knee", "right_knee", "left_ankle"),
    "right_ankle",
)
COCO_SKELETON = (
    *((15, 13), (13, 11), (16, 14), (14, 12), (11, 12), (5, 11), (6, 12), (5, 6), (5, 7), (6, 8), (7, 9), (8, 10)),
    *((1, 2), (0, 1), (0, 2), (1, 3), (2, 4), (3, 5), (4, 6)),
)
"""Pairs of positions in COCO_KEYPOINTS."""
MIRRORED = [0, *(number for left in range(1, len(COCO_KEYPOINTS), 2) for number in (left + 1, left))]
"""Positions in COCO_KEYPOINTS after swapping left and right."""
