"""Choose a batch size that fits what this container may still allocate.

    python batch_size.py --bytes-per-sample 3MiB --reserve 1GiB

What it shows: `own_region` finds the budget of the container that a program runs in, beside a
loaded libvgpu and without CUDA. On a GPU that is not shared there is no region: ask the driver.
"""

import argparse

import libhamiregion as hami


def batch_size(sample_bytes: int, reserve_bytes: int = 0, device: int = 0) -> int | None:
    """How many samples fit now; None where nothing limits this program's memory."""
    try:
        with hami.own_region() as region:
            free_bytes = region.snapshot().device(device).memory_free_bytes
    except hami.RegionNotFound:
        return None
    if free_bytes is None:
        return None
    return max(0, free_bytes - reserve_bytes) // sample_bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--bytes-per-sample", type=hami.parse_size, required=True, metavar="SIZE")
    parser.add_argument("--reserve", type=hami.parse_size, default=0, metavar="SIZE")
    arguments = parser.parse_args()
    size = batch_size(arguments.bytes_per_sample, arguments.reserve)
    print("unlimited" if size is None else size)


if __name__ == "__main__":
    main()
