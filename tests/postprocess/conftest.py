"""What the tests of heads look at."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from known_models import SIZE


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    """Twice as large as the model input, and as wide as high: no padding, scale 1/2."""
    Image.fromarray(np.full((2 * SIZE, 2 * SIZE, 3), 90, np.uint8)).save(tmp_path / "picture.png")
    return tmp_path / "picture.png"
