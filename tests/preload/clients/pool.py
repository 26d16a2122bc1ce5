"""A multiprocessing pool: `pool.py METHOD BYTES`. Prints the code of each worker's allocation."""

import ctypes
import multiprocessing
import sys


def allocate(size: int) -> int:
    driver = ctypes.CDLL("libcuda.so.1")
    context, address = ctypes.c_void_p(), ctypes.c_uint64()
    assert driver.cuInit(0) == 0
    assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert driver.cuCtxSetCurrent(context) == 0
    return driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size))


def work(size: int, barrier: object) -> None:
    code = allocate(size)
    barrier.wait()
    sys.exit(code)


def main() -> None:
    method, size = sys.argv[1], int(sys.argv[2])
    multiprocessing.set_start_method(method)
    barrier = multiprocessing.Barrier(3)
    workers = [multiprocessing.Process(target=work, args=(size, barrier)) for _ in range(2)]
    for worker in workers:
        worker.start()
    barrier.wait()
    for worker in workers:
        worker.join()
    # The whole limit but the context, and one byte more than fits.
    print(*(worker.exitcode for worker in workers), allocate((1 << 30) - (256 << 20) + 1))


if __name__ == "__main__":
    main()
