"""Learning-rate schedule: linear warm-up, then half a cosine to zero."""

import math


def learning_rate(peak: float, step: int, total: int) -> float:
    """Rate of the `step`-th successful step (from 1) of `total`."""
    warm = max(1, total // 50)
    if step <= warm:
        return peak * step / warm
    progress = min(1.0, (step - warm) / max(1, total - warm))
    return peak * 0.5 * (1.0 + math.cos(math.pi * progress))
