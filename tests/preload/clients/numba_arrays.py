"""numba-cuda: arrays on the device, pinned and mapped memory, a stream, an event."""

import sys

import numpy as np
from numba import cuda
from numba.cuda.cudadrv.driver import CudaAPIError


def main() -> None:
    array = cuda.to_device(np.arange(1000.0))
    assert array.copy_to_host().sum() == 499500
    with cuda.pinned(np.zeros(10)):
        cuda.mapped_array(10)[0] = 3
    stream = cuda.stream()
    event = cuda.event()
    event.record(stream)
    event.synchronize()
    cuda.current_context().reset()
    print(*cuda.current_context().get_memory_info())
    try:
        cuda.device_array(int(sys.argv[1]), dtype=np.uint8)
        print("CUDA_SUCCESS")
    except (CudaAPIError, MemoryError) as error:
        print("CUDA_ERROR_OUT_OF_MEMORY" if "OUT_OF_MEMORY" in str(error) else repr(error))
    cuda.close()


if __name__ == "__main__":
    main()
