/* A library that uses the region as another one does, from the moment on at which it is loaded: by
 * a mapping of its own, as libvgpu.so has. */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

__attribute__((constructor)) static void take(void)
{
    struct stat status;
    const char *path = getenv("CUDA_DEVICE_MEMORY_SHARED_CACHE");
    int file = path == NULL ? -1 : open(path, O_RDWR | O_CLOEXEC);
    if (file < 0 || fstat(file, &status) != 0 ||
        mmap(NULL, (size_t)status.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) ==
            MAP_FAILED)
        abort();
    close(file);
}
