"""Measure the limits of this GPU, and print them as the word ``CEILINGS`` and a JSON object.

The limits are the bytes that a copy reads and writes per second, and the floating-point operations per second of
matrix products in BF16 and FP8.
"""

import json
import sys
import time


def main():
    """Measure the GPU's limits and print them. Exit with an error if there is no GPU."""
    import torch

    if not torch.cuda.is_available():
        sys.exit("no GPU")
    size, n = 4 << 30, 8_192
    one, other = (torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(2))
    copied = 2 * size / seconds(lambda: other.copy_(one), torch)
    a, b = (torch.randn(n, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    found = {"gpu": torch.cuda.get_device_name(), "bytes_per_s": copied}
    found["flops_bf16"] = 2 * n**3 / seconds(lambda: a @ b, torch)
    if torch.cuda.get_device_capability() >= (8, 9):  # an A100 multiplies no FP8
        fp8 = torch.float8_e4m3fn
        scale = torch.ones((), device="cuda")
        a8, b8 = a.to(fp8), b.t().contiguous().to(fp8).t()
        product = seconds(lambda: torch._scaled_mm(a8, b8, scale, scale, out_dtype=torch.bfloat16), torch)
        found["flops_fp8"] = 2 * n**3 / product
    sys.stdout.write(f"CEILINGS {json.dumps(found)}\n")


def seconds(work, torch, rounds=20):
    """Return the time of one call of ``work``, in seconds.

    ``work`` is called in three series of ``rounds`` calls. The result is the lowest mean of a series.
    """
    work()
    best = float("inf")
    for _ in range(3):
        torch.cuda.synchronize()
        begun = time.monotonic()
        for _ in range(rounds):
            work()
        torch.cuda.synchronize()
        best = min(best, (time.monotonic() - begun) / rounds)
    return best


if __name__ == "__main__":
    main()
