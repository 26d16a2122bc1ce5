/* Physical memory and the addresses that it is mapped at: what CUDA calls virtual memory
 * management. */
#define _GNU_SOURCE
#include "fake.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define GRANULARITY (2ull << 20)

struct physical {
    int device; /* -1: not of a device */
    int file;
    uint64_t size;
    unsigned users; /* handles and mappings */
};

struct mapping {
    CUdeviceptr address;
    uint64_t size;
    struct physical *physical;
    struct mapping *next;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct mapping *mappings;

/* The memory goes when neither a handle nor a mapping needs it. */
static void drop(struct physical *physical)
{
    if (--physical->users > 0)
        return;
    if (physical->device >= 0)
        discharge(physical->device, physical->size);
    close(physical->file);
    free(physical);
}

API CUresult cuMemGetAllocationGranularity(size_t *out, const CUmemAllocationProp *wanted,
                                           int option)
{
    (void)wanted, (void)option;
    *out = GRANULARITY;
    return check_initialised();
}

API CUresult cuMemCreate(CUmemGenericAllocationHandle *out, size_t size,
                         const CUmemAllocationProp *wanted, unsigned long long flags)
{
    CUresult code = check_initialised();
    if (code != CUDA_SUCCESS)
        return code;
    if (flags != 0 || size == 0 || size % GRANULARITY != 0)
        return CUDA_ERROR_INVALID_VALUE;
    /* 6: a part of a device, which is the low byte. */
    int device = wanted->location.type == 6 ? wanted->location.id & 0xff : wanted->location.id;
    bool on_device =
        wanted->location.type == CU_MEM_LOCATION_TYPE_DEVICE || wanted->location.type == 6;
    if (on_device)
        code = check_device(device);
    if (code == CUDA_SUCCESS && on_device)
        code = charge(device, size);
    if (code != CUDA_SUCCESS)
        return code;
    struct physical *physical = malloc(sizeof *physical);
    *physical = (struct physical){on_device ? device : -1,
                                  memfd_create("fake GPU memory", MFD_CLOEXEC), size, 1};
    if (physical->file < 0 || ftruncate(physical->file, (off_t)size) != 0) {
        drop(physical);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *out = (CUmemGenericAllocationHandle)physical;
    return CUDA_SUCCESS;
}

API CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    CUresult code = check_initialised();
    if (code != CUDA_SUCCESS)
        return code;
    if (handle == 0)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&mutex);
    drop((struct physical *)handle);
    pthread_mutex_unlock(&mutex);
    return CUDA_SUCCESS;
}

API CUresult cuMemAddressReserve(CUdeviceptr *out, size_t size, size_t alignment,
                                 CUdeviceptr wanted, unsigned long long flags)
{
    (void)alignment, (void)flags;
    CUresult code = check_initialised();
    if (code != CUDA_SUCCESS)
        return code;
    if (size == 0 || size % GRANULARITY != 0)
        return CUDA_ERROR_INVALID_VALUE;
    void *address =
        mmap((void *)wanted, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (address == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *out = (CUdeviceptr)address;
    return CUDA_SUCCESS;
}

API CUresult cuMemAddressFree(CUdeviceptr address, size_t size)
{
    CUresult code = check_initialised();
    if (code == CUDA_SUCCESS)
        munmap((void *)address, size);
    return code;
}

API CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset,
                      CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    CUresult code = check_initialised();
    if (code != CUDA_SUCCESS)
        return code;
    struct physical *physical = (struct physical *)handle;
    if (flags != 0 || handle == 0 || offset + size > physical->size)
        return CUDA_ERROR_INVALID_VALUE;
    if (mmap((void *)address, size, PROT_NONE, MAP_SHARED | MAP_FIXED, physical->file,
             (off_t)offset) == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct mapping *mapping = malloc(sizeof *mapping);
    pthread_mutex_lock(&mutex);
    *mapping = (struct mapping){address, size, physical, mappings};
    mappings = mapping;
    physical->users++;
    pthread_mutex_unlock(&mutex);
    return CUDA_SUCCESS;
}

API CUresult cuMemSetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc *wanted,
                            size_t count)
{
    CUresult code = check_initialised();
    if (code != CUDA_SUCCESS)
        return code;
    int protection = count > 0 && wanted->flags == 3   ? PROT_READ | PROT_WRITE
                     : count > 0 && wanted->flags == 1 ? PROT_READ
                                                       : PROT_NONE;
    return mprotect((void *)address, size, protection) == 0 ? CUDA_SUCCESS
                                                            : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuMemUnmap(CUdeviceptr address, size_t size)
{
    CUresult code = check_initialised();
    if (code != CUDA_SUCCESS)
        return code;
    bool found = false;
    pthread_mutex_lock(&mutex);
    for (struct mapping **place = &mappings; *place != NULL;) {
        struct mapping *mapping = *place;
        if (mapping->address < address || mapping->address >= address + size) {
            place = &mapping->next;
            continue;
        }
        mmap((void *)mapping->address, mapping->size, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
        *place = mapping->next;
        drop(mapping->physical);
        free(mapping);
        found = true;
    }
    pthread_mutex_unlock(&mutex);
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *out, void *address)
{
    CUresult code = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&mutex);
    for (struct mapping *mapping = mappings; mapping != NULL && code != CUDA_SUCCESS;
         mapping = mapping->next)
        if ((CUdeviceptr)address >= mapping->address &&
            (CUdeviceptr)address < mapping->address + mapping->size) {
            mapping->physical->users++;
            *out = (CUmemGenericAllocationHandle)mapping->physical;
            code = CUDA_SUCCESS;
        }
    pthread_mutex_unlock(&mutex);
    return code;
}
