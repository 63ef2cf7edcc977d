"""What a user would call on the GPU instead of our kernels: CV-CUDA, PyTorch, torchvision. Buffers exist before.

Every factory returns a function without arguments that starts the work on the current stream of its library; the
benchmark sets those to one stream, and captures a graph where the library allows it. Libraries are imported when asked
for: one that is missing makes its own peers missing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Call = Callable[[], object]


class Lent:
    """A CuPy array for CV-CUDA, without its stream: nothing has to be waited for, and waiting cannot be captured."""

    def __init__(self, array: Any) -> None:
        self.array = array
        self.__cuda_array_interface__ = array.__cuda_array_interface__ | {"stream": -1, "version": 3}


class CvCuda:
    """CV-CUDA's operators on one stream, into tensors that exist."""

    def __init__(self, stream: Any) -> None:
        import cvcuda

        self.cv = cvcuda
        self.stream = cvcuda.as_stream(stream.ptr)

    def tensor(self, array: Any, layout: str = "NHWC") -> Any:
        return self.cv.as_tensor(Lent(array), layout)

    def nv12_chain(self, nv12: Any, rgb: Any, small: Any, floats: Any, out: Any) -> Call:
        """NV12 (N, 3H/2, W, 1) -> RGB (N, H, W, 3) -> resized (N, h, w, 3) -> float32 -> NCHW: four operators."""
        cv = self.cv
        source, a, b, c = (self.tensor(array) for array in (nv12, rgb, small, floats))
        target = self.tensor(out, "NCHW")

        def call() -> None:
            cv.cvtcolor_into(a, source, cv.ColorConversion.YUV2RGB_NV12, stream=self.stream)
            cv.resize_into(b, a, cv.Interp.LINEAR, stream=self.stream)
            cv.convertto_into(c, b, 1 / 255, stream=self.stream)
            cv.reformat_into(target, c, stream=self.stream)

        return call

    def fused(self, bgr: Any, out: Any) -> Call:
        """BGR (N, H, W, 3) -> float32 RGB (N, 3, h, w): ResizeCropConvertReformat, its one fused operator."""
        cv = self.cv
        source, target = self.tensor(bgr), self.tensor(out, "NCHW")
        height, width = out.shape[2:]
        return lambda: cv.resize_crop_convert_reformat_into(
            target, source, (width, height), cv.Interp.LINEAR, (0, 0),
            manip=cv.ChannelManip.REVERSE, scale=1 / 255, stream=self.stream,
        )  # fmt: skip

    def to_rgb(self, nv12: Any, rgb: Any, floats: Any) -> Call:
        """NV12 -> RGB -> float32 in 0..1, interleaved."""
        cv = self.cv
        source, a, b = (self.tensor(array) for array in (nv12, rgb, floats))

        def call() -> None:
            cv.cvtcolor_into(a, source, cv.ColorConversion.YUV2RGB_NV12, stream=self.stream)
            cv.convertto_into(b, a, 1 / 255, stream=self.stream)

        return call

    def warp(self, image: Any, matrix: Any, out: Any) -> Call:
        """Bilinear warp_affine with a constant border."""
        cv = self.cv
        source, target = self.tensor(image), self.tensor(out)
        return lambda: cv.warp_affine_into(
            target, source, matrix, cv.Interp.LINEAR, border_mode=cv.Border.CONSTANT, stream=self.stream
        )


class Torch:
    """PyTorch operators on tensors that share memory with CuPy arrays."""

    device = "cuda"

    def __init__(self) -> None:
        import torch

        self.torch = torch

    def tensor(self, array: Any) -> Any:
        return self.torch.as_tensor(array, device=self.device)

    def letterbox(self, bgr: Any, out: Any, content: tuple[int, int, int, int]) -> Call:
        """BGR (N, H, W, 3) -> RGB (N, 3, h, w) in 0..1 into the middle of a letterbox: eager operators."""
        functional = self.torch.nn.functional
        source, target = self.tensor(bgr), self.tensor(out)
        left, top, width, height = content
        box = target[:, :, top : top + height, left : left + width]

        def call() -> None:
            planar = source.permute(0, 3, 1, 2).flip(1).to(target.dtype)
            box.copy_(functional.interpolate(planar, (height, width), mode="bilinear", align_corners=False) / 255)

        return call

    def to_rgb(self, nv12: Any, out: Any) -> Call:
        """NV12 (N, 3H/2, W) -> float32 RGB (N, 3, H, W) in 0..1, BT.601 limited, chroma repeated."""
        torch = self.torch
        source, target = self.tensor(nv12), self.tensor(out)
        height = source.shape[1] * 2 // 3
        matrix = torch.tensor(
            [[255 / 219, 0, 1.402 * 255 / 224], [255 / 219, -0.344136 * 255 / 224, -0.714136 * 255 / 224],
             [255 / 219, 1.772 * 255 / 224, 0]], device=self.device) / 255  # fmt: skip

        def call() -> None:
            luma = source[:, :height].float().sub_(16)
            chroma = source[:, height:].reshape(len(source), height // 2, -1, 2).float().sub_(128)
            chroma = chroma.repeat_interleave(2, 1).repeat_interleave(2, 2)
            yuv = torch.cat((luma[..., None], chroma), 3)
            target.copy_((yuv @ matrix.T).clamp_(0, 1).permute(0, 3, 1, 2))

        return call

    def warp(self, image: Any, inverse: Any, out: Any) -> Call:
        """grid_sample of float32 (N, 3, H, W) with a grid made once; `inverse` (2, 3) maps destination to source."""
        torch, functional = self.torch, self.torch.nn.functional
        source, target = self.tensor(image), self.tensor(out)
        count, _, height, width = source.shape
        y, x = (
            axis.to(self.device) for axis in torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
        )
        a = torch.tensor(inverse, device=self.device, dtype=torch.float32)
        sx, sy = (row[0] * x + row[1] * y + row[2] for row in a)
        grid = torch.stack((2 * (sx + 0.5) / width - 1, 2 * (sy + 0.5) / height - 1), 2).expand(count, -1, -1, -1)
        return lambda: target.copy_(functional.grid_sample(source, grid, align_corners=False))

    def nms(self, output: Any, conf: float, iou: float, max_det: int) -> Call:
        """(N, 4 + nc, anchors): filter, arg-max, torchvision.ops.batched_nms, image by image. It synchronises."""
        from torchvision.ops import batched_nms

        source = self.tensor(output)

        def call() -> None:
            for image in source:
                best, classes = image[4:].max(0)
                keep = best > conf
                cx, cy, w, h = image[:4, keep]
                boxes = self.torch.stack((cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2), 1)
                chosen = batched_nms(boxes, best[keep], classes[keep], iou)[:max_det]
                self.result = boxes[chosen], best[keep][chosen], classes[keep][chosen]

        return call

    def nms_alone(self, boxes: Any, scores: Any, iou: float) -> Call:
        """torchvision.ops.nms of boxes that are there already: less than the whole job."""
        from torchvision.ops import nms

        b, s = self.tensor(boxes), self.tensor(scores)
        return lambda: nms(b, s, iou)

    def kept(self, boxes: Any, scores: Any, iou: float) -> Any:
        """torchvision.ops.nms on the host, of numpy arrays."""
        from torchvision.ops import nms

        return nms(self.torch.from_numpy(boxes), self.torch.from_numpy(scores), iou).numpy()

    def argmax_smooth(self, scores: Any, out: Any, size: int) -> Call:
        """(N, C, H, W) -> arg-max == 1 -> box filter of `size` -> 0..255 uint8."""
        functional = self.torch.nn.functional
        source, target = self.tensor(scores), self.tensor(out)

        def call() -> None:
            mask = (source.argmax(1, keepdim=True) == 1).float()
            edge = functional.pad(mask, (size // 2,) * 4, mode="replicate")
            target.copy_((functional.avg_pool2d(edge, size, 1) * 255 + 0.5)[:, 0])

        return call

    def instance_masks(
        self, prototypes: Any, coefficients: Any, boxes: Any, size: tuple[int, int], content: Any
    ) -> Call:
        """Coefficients @ prototypes, the image's part resized to (height, width), cropped, > 0: without RLE."""
        torch, functional = self.torch, self.torch.nn.functional
        p, c, b = self.tensor(prototypes), self.tensor(coefficients), self.tensor(boxes)
        left, top, width, height = content
        y, x = (torch.arange(n, device=self.device) for n in size)
        y = y[:, None]
        x1, y1, x2, y2 = (b[:, k, None, None] for k in range(4))

        def call() -> None:
            logits = (c @ p.reshape(len(p), -1)).reshape(1, len(c), *p.shape[1:])
            part = logits[:, :, top : top + height, left : left + width]
            large = functional.interpolate(part, size, mode="bilinear", align_corners=False)[0]
            self.result = (large > 0) & (x >= x1) & (x < x2) & (y >= y1) & (y < y2)

        return call
