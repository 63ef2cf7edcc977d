"""Greedy non-maximum suppression with torchvision's signature, computed by OpenCV."""

import cv2
import torch


def nms(boxes: torch.Tensor, scores: torch.Tensor, iou_threshold: float) -> torch.Tensor:
    """Indices of the boxes (N, 4; x1 y1 x2 y2) that no better box overlaps by more than `iou_threshold`, best first."""
    if boxes.shape[0] == 0:
        return torch.empty(0, dtype=torch.int64)
    xywh = boxes.detach().numpy().copy()
    xywh[:, 2:] -= xywh[:, :2]
    keep = cv2.dnn.NMSBoxes(xywh, scores.detach().numpy(), score_threshold=0.0, nms_threshold=float(iou_threshold))
    return torch.as_tensor(keep, dtype=torch.int64).flatten()
