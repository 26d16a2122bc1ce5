"""nvidia-ml-py: what the first device is said to be."""

import pynvml


def main() -> None:
    pynvml.nvmlInit()
    device = pynvml.nvmlDeviceGetHandleByIndex(0)
    first = pynvml.nvmlDeviceGetMemoryInfo(device)
    second = pynvml.nvmlDeviceGetMemoryInfo(device, version=pynvml.nvmlMemory_v2)
    assert (first.total, first.free, first.used) == (second.total, second.free, second.used)
    print(first.total, first.free, first.used)
    print(pynvml.nvmlDeviceGetUUID(device), pynvml.nvmlDeviceGetName(device))
    pynvml.nvmlShutdown()


if __name__ == "__main__":
    main()
