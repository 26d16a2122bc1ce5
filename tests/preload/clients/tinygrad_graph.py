"""tinygrad, by the driver's interface alone: kernels, and a graph with other tensors each time.

Prints what memory info says at first, and the code of an allocation that is too large.
"""

import ctypes
import os
import sys

os.environ.update(DEV="CUDA:PTX", CACHELEVEL="0")

from tinygrad import Device, Tensor, TinyJit, dtypes
from tinygrad.device import Buffer
from tinygrad.runtime.autogen import cuda
from tinygrad.runtime.graph.cuda import CUDAGraph


def use_graphs() -> None:
    tensors = [Tensor([1.0] * 1000).clone().realize() for _ in range(2)]

    @TinyJit
    def twice(tensor: Tensor) -> Tensor:
        return ((tensor + 1).contiguous() * 2).contiguous().realize()

    launches, launch = [], CUDAGraph.__call__

    def counted(*arguments: object, **named: object) -> object:
        launches.append(arguments)
        return launch(*arguments, **named)

    CUDAGraph.__call__ = counted
    for number in range(6):
        twice(tensors[number % 2]).tolist()
    assert launches, "no graph was launched"


def main() -> None:
    Device["CUDA"].synchronize()
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    assert cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
    print(free.value, total.value)
    use_graphs()
    try:
        Buffer("CUDA", int(sys.argv[1]), dtypes.uint8).allocate()
        print("CUDA_SUCCESS")
    except (RuntimeError, MemoryError) as error:
        # tinygrad frees what it keeps, and tries again.
        said = f"{error} {error.__context__}"
        print("CUDA_ERROR_OUT_OF_MEMORY" if "CUDA Error 2," in said else said)


if __name__ == "__main__":
    main()
