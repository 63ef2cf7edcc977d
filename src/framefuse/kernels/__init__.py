"""Kernels between decoder and result, compiled ahead of time for CPUs and NVIDIA GPUs.

Each function has a reference of the same name in `reference`, in plain numpy, which is its specification. Functions on
arrays of a GPU run there; `record_launches` makes a `LaunchPlan` that repeats such a call without its checks.
"""

from framefuse.cuda.launch_plan import LaunchPlan as LaunchPlan
from framefuse.cuda.launch_plan import Workspace as Workspace
from framefuse.cuda.launch_plan import record_launches as record_launches
from framefuse.kernels import reference as reference
from framefuse.kernels.boxes.call import detections as detections
from framefuse.kernels.boxes.call import nms as nms
from framefuse.kernels.colour.call import rgb_to_yuv as rgb_to_yuv
from framefuse.kernels.colour.call import yuv_to_rgb as yuv_to_rgb
from framefuse.kernels.colour.layout import change_layout as change_layout
from framefuse.kernels.colour.layout import normalize as normalize
from framefuse.kernels.cpu import Library as Library
from framefuse.kernels.cpu import describe as describe
from framefuse.kernels.drawing.call import draw_boxes as draw_boxes
from framefuse.kernels.drawing.call import overlay as overlay
from framefuse.kernels.geometry.call import flip as flip
from framefuse.kernels.geometry.call import remap as remap
from framefuse.kernels.geometry.call import split_stereo as split_stereo
from framefuse.kernels.geometry.call import warp_affine as warp_affine
from framefuse.kernels.geometry.call import warp_perspective as warp_perspective
from framefuse.kernels.geometry.projections import equirectangular_to_perspective as equirectangular_to_perspective
from framefuse.kernels.geometry.projections import fisheye_to_perspective as fisheye_to_perspective
from framefuse.kernels.masks.call import argmax as argmax
from framefuse.kernels.masks.call import box_blur as box_blur
from framefuse.kernels.masks.call import classes as classes
from framefuse.kernels.masks.call import composite as composite
from framefuse.kernels.masks.call import ema as ema
from framefuse.kernels.masks.call import gaussian_blur as gaussian_blur
from framefuse.kernels.masks.call import matte as matte
from framefuse.kernels.masks.call import upsample as upsample
from framefuse.kernels.masks.instances import DeviceRuns as DeviceRuns
from framefuse.kernels.masks.instances import Runs as Runs
from framefuse.kernels.masks.instances import instance_labels as instance_labels
from framefuse.kernels.masks.instances import instance_masks as instance_masks
from framefuse.kernels.masks.instances import instance_runs as instance_runs
from framefuse.kernels.masks.instances import mask_runs as mask_runs
from framefuse.kernels.preprocess.call import preprocess as preprocess
from framefuse.kernels.preprocess.call import preprocess_batch as preprocess_batch
from framefuse.kernels.preprocess.cuda import PreprocessTable as PreprocessTable
