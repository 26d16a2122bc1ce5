/* What the parts of the fake libcuda.so.1 share. */
#ifndef FAKE_CUDA_FAKE_H
#define FAKE_CUDA_FAKE_H

#include "cuda_types.h"
#include "state.h"

#define API __attribute__((visibility("default")))

/* A second export that does what the first does. It has an address of its own, as in the real
 * driver: whoever tells functions by their addresses must be able to. */
#if defined(__x86_64__)
#define JUMP "jmp"
#else
#define JUMP "b"
#endif
#define ALSO(name, of)                                                                             \
    __asm__(".pushsection .text\n.globl " #name "\n.type " #name ", %function\n" #name             \
            ":\n\t" JUMP " " #of "\n.size " #name ", . - " #name "\n.popsection\n")

/* Where this process stands; `state` is NULL until cuInit. */
struct fake {
    struct state *state;
    struct client *self;
    int device_count;        /* visible ones */
    unsigned gpus[MAX_GPUS]; /* which GPU of the state each of them is */
    pthread_mutex_t mutex;   /* over this process's own books, never taken before the state's */
    _Atomic int initialised; /* 1: yes; -1: the parent had, before it forked */
};
extern struct fake fake;

struct context {
    int device;
    bool is_primary;
    _Atomic bool is_alive;
    unsigned flags, retained;
    struct context *next; /* among all contexts that cuCtxCreate has made */
};

/* ---- stubs.c ---- */

/* What cuGetProcAddress may answer; the last one has no name. */
struct answer {
    const char *name;
    unsigned version;
    bool is_per_thread;
    void *function;
};
extern const struct answer answers[];

/* ---- contexts.c ---- */

CUresult check_initialised(void);
CUresult check_device(CUdevice device);
/* The calling thread's context, alive. */
CUresult current_context(CUcontext *context);

/* ---- memory.c ---- */

/* One allocation. */
struct block {
    CUdeviceptr address;
    uint64_t size;
    uint64_t charged; /* what it takes of its device's memory; 0: its pool has it, or the host */
    int device;
    CUcontext context; /* it ends with this context; NULL: it does not */
    CUmemoryPool pool;
    struct block *next;
};

/* Take memory of a device, or give it back: the driver's own figure for this process. */
CUresult charge(int device, uint64_t bytes);
void discharge(int device, uint64_t bytes);

/* Add an allocation to the books; its address is found, and its charge paid already. */
CUresult add_block(struct block wanted, CUdeviceptr *out);
CUresult free_block(CUdeviceptr address);
void free_blocks_of(CUcontext context);

/* ---- pools.c ---- */

void pool_give_back(CUmemoryPool pool, uint64_t bytes);
/* Give what is reserved and not used back to the device: above the release thresholds, as a
 * synchronisation does, or all, as the end of a context does. */
void trim_pools(int device, bool heeding_thresholds);

/* ---- launches.c ---- */

struct function {
    char name[96];
    int64_t launch_ns, block_ns; /* as its name says */
};

struct stream {
    CUcontext context;
    uint64_t target_ns; /* it is idle once the device has done this much for the process */
    CUgraph capturing;
    bool capture_is_global;
    unsigned invalidations; /* before the capture */
};

uint64_t kernel_ns(CUfunction function, uint64_t blocks);
/* Queue work on the device of a stream; waits while the queue is full. */
CUresult submit(struct stream *stream, uint64_t ns);
/* The stream itself; for the default streams, the current context's. */
CUresult resolve_stream(CUstream stream, struct stream **out);

/* ---- graphs.c ---- */

CUresult capture_kernel(CUgraph graph, CUfunction function, uint64_t blocks);
CUresult capture_allocation(CUgraph graph, int device, uint64_t size, CUdeviceptr *out);
bool graph_free(CUdeviceptr address);
/* For calls that are not safe while any thread captures: they end its capture, unless the calling
 * thread has chosen the relaxed mode. */
CUresult check_capture(void);

#endif
