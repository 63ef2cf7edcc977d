"""Every kernel in plain numpy float64: the executable specification, slow and simple on purpose."""

from framefuse.kernels.boxes.reference import Found as Found
from framefuse.kernels.boxes.reference import detections as detections
from framefuse.kernels.boxes.reference import nms as nms
from framefuse.kernels.boxes.reference import rotated_intersection as rotated_intersection
from framefuse.kernels.colour.reference import change_layout as change_layout
from framefuse.kernels.colour.reference import normalize as normalize
from framefuse.kernels.colour.reference import rgb_to_yuv as rgb_to_yuv
from framefuse.kernels.colour.reference import yuv_to_rgb as yuv_to_rgb
from framefuse.kernels.geometry.reference import remap as remap
from framefuse.kernels.geometry.reference import warp_affine as warp_affine
from framefuse.kernels.geometry.reference import warp_perspective as warp_perspective
from framefuse.kernels.masks.reference import argmax as argmax
from framefuse.kernels.masks.reference import composite as composite
from framefuse.kernels.masks.reference import draw_boxes as draw_boxes
from framefuse.kernels.masks.reference import ema as ema
from framefuse.kernels.masks.reference import gaussian_weights as gaussian_weights
from framefuse.kernels.masks.reference import instance_logits as instance_logits
from framefuse.kernels.masks.reference import instance_masks as instance_masks
from framefuse.kernels.masks.reference import overlay as overlay
from framefuse.kernels.masks.reference import run_text as run_text
from framefuse.kernels.masks.reference import runs as runs
from framefuse.kernels.masks.reference import smooth as smooth
from framefuse.kernels.masks.reference import upsample as upsample
from framefuse.kernels.preprocess.reference import preprocess as preprocess
