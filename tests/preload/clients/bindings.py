"""cuda-bindings: memory in several ways, a kernel, a graph.

Prints what memory info says at first, and the code of an allocation that is too large.
"""

import ctypes
import sys

from cuda.bindings import driver

MIB = 1 << 20


def do(answer: tuple[object, ...]) -> object:
    code, *values = answer
    assert code == driver.CUresult.CUDA_SUCCESS, code
    return values[0] if len(values) == 1 else tuple(values)


def physical_properties() -> driver.CUmemAllocationProp:
    wanted = driver.CUmemAllocationProp()
    wanted.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    wanted.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    wanted.location.id = 0
    return wanted


def use_memory(stream: object) -> None:
    address = do(driver.cuMemAlloc(MIB))
    do(driver.cuMemsetD8(address, 7, MIB))
    copy = ctypes.create_string_buffer(16)
    do(driver.cuMemcpyDtoH(ctypes.addressof(copy), address, 16))
    assert copy.raw == b"\x07" * 16
    do(driver.cuMemFree(address))
    do(driver.cuMemFreeAsync(do(driver.cuMemAllocAsync(MIB, stream)), stream))
    do(driver.cuStreamSynchronize(stream))
    handle = do(driver.cuMemCreate(4 * MIB, physical_properties(), 0))
    do(driver.cuMemRelease(handle))


def use_kernels(stream: object) -> None:
    kernel = do(driver.cuModuleGetFunction(do(driver.cuModuleLoadData(b"image")), b"kernel_100us"))
    launch = (kernel, 4, 1, 1, 32, 1, 1, 0, stream, 0, 0)
    for _ in range(10):
        do(driver.cuLaunchKernel(*launch))
    mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
    do(driver.cuStreamBeginCapture(stream, mode))
    do(driver.cuLaunchKernel(*launch))
    graph = do(driver.cuGraphInstantiate(do(driver.cuStreamEndCapture(stream)), 0))
    do(driver.cuGraphLaunch(graph, stream))
    do(driver.cuStreamSynchronize(stream))


def main() -> None:
    do(driver.cuInit(0))
    context = do(driver.cuDevicePrimaryCtxRetain(do(driver.cuDeviceGet(0))))
    do(driver.cuCtxSetCurrent(context))
    print(*do(driver.cuMemGetInfo()))
    stream = do(driver.cuStreamCreate(0))
    use_memory(stream)
    use_kernels(stream)
    code, _ = driver.cuMemAlloc(int(sys.argv[1]))
    print(code.name)


if __name__ == "__main__":
    main()
