"""What the mask kernels of both devices share: the names of their element types and the blend of two pixels."""

TYPES = {"u8": "uint8", "f32": "float32"}


def blended(foreground, background, alpha):
    """(f a + b (255 - a) + 127) // 255 for integers; exact for 0 <= n < 65,790: (n + 1 + (n >> 8)) >> 8."""
    value = foreground * alpha + background * (255 - alpha) + 127
    return (value + 1 + (value >> 8)) >> 8
