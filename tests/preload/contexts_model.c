/*
 * What goes away with a context, and what stays, by the driver and the region of
 * numbered_driver.h: `contexts_model` ends the program where the region counts something else.
 */
#include "numbered_driver.h"

#include "../../csrc/preload/books.h"
#include "../../csrc/preload/pools.h"

enum { SIZE = 1000 };

/* ---- Contexts in the region ----------------------------------------------------------- */

static int admitted, measured, watchers, noted, trims;
static int admitted_row, measured_row;
static bool is_full; /* no context fits, as long as the pools were not trimmed so often: */
static int trims_needed, pools_emptied;
static CUdevice emptied_device;

CUresult hr_admit_context(int row)
{
    admitted++;
    admitted_row = row;
    return is_full && trims < trims_needed ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

void hr_measure_contexts(int row)
{
    measured++;
    measured_row = row;
}

void hr_start_watcher(void)
{
    MUST(attached > 0);
    watchers++;
}

void hr_note_others(int row, CUdevice device)
{
    MUST(row == hr_row_of_device(device));
    noted++;
}

static bool has_pools;

bool hr_trim_pools(int row)
{
    MUST(row == admitted_row || admitted == 0);
    trims += has_pools;
    return has_pools;
}

void hr_empty_pools(CUdevice device)
{
    emptied_device = device;
    pools_emptied++;
}

void hr_settle_pool(int number)
{
    (void)number;
}

void hr_take_back_promise(int number, uint64_t bytes)
{
    (void)number, (void)bytes;
    MUST(false);
}

void hr_fork_pools(enum hr_fork at)
{
    (void)at;
}

void hr_fork_physical(enum hr_fork at)
{
    (void)at;
}

/* ---- The driver ----------------------------------------------------------------------- */

static int made, attachments; /* beyond the first, to the current context */
static const char *last_call = "";

static void end_context(CUcontext context)
{
    for (int at = 0; at < MOST_BLOCKS; at++) {
        if (blocks[at].key != 0 && blocks[at].context == context)
            drop(&blocks[at]);
    }
    context->is_alive = false;
    if (current == context)
        current = NULL;
}

static CUresult create(CUcontext *out, CUdevice device)
{
    CUresult result = take_result();
    if (result != CUDA_SUCCESS)
        return result;
    for (int at = 0;; at++) {
        if (others[at].is_alive)
            continue;
        others[at] = (struct CUctx_st){.device = device, .is_alive = true};
        *out = current = &others[at];
        made++;
        return CUDA_SUCCESS;
    }
}

static CUresult create_1(CUcontext *out, unsigned flags, CUdevice device)
{
    MUST(flags == 5);
    last_call = "1";
    return create(out, device);
}

static CUresult create_2(CUcontext *out, unsigned flags, CUdevice device)
{
    MUST(flags == 5);
    last_call = "2";
    return create(out, device);
}

static CUresult create_3(CUcontext *out, void *affinity, int count, unsigned flags, CUdevice device)
{
    MUST(affinity == out && count == 3 && flags == 5);
    last_call = "3";
    return create(out, device);
}

static CUresult create_4(CUcontext *out, void *parameters, unsigned flags, CUdevice device)
{
    MUST(parameters == out && flags == 5);
    last_call = "4";
    return create(out, device);
}

static CUresult destroy(CUcontext context)
{
    CUresult result = take_result();
    if (result != CUDA_SUCCESS)
        return result;
    if (context == NULL || !context->is_alive)
        return CUDA_ERROR_INVALID_CONTEXT;
    end_context(context);
    return CUDA_SUCCESS;
}

static CUresult detach(CUcontext context)
{
    if (attachments > 0) {
        attachments--;
        return take_result();
    }
    return destroy(context);
}

static CUresult retain(CUcontext *out, CUdevice device)
{
    CUresult result = take_result();
    if (result != CUDA_SUCCESS)
        return result;
    primaries[device].is_alive = true;
    primaries[device].users++;
    *out = &primaries[device];
    return CUDA_SUCCESS;
}

static CUresult release(CUdevice device)
{
    CUresult result = take_result();
    if (result == CUDA_SUCCESS && --primaries[device].users == 0)
        end_context(&primaries[device]);
    return result;
}

static CUresult reset(CUdevice device)
{
    CUresult result = take_result();
    if (result == CUDA_SUCCESS)
        end_context(&primaries[device]);
    return result;
}

static bool is_state_unknown;

static CUresult get_state(CUdevice device, unsigned *flags, int *is_active)
{
    *flags = 0;
    *is_active = primaries[device].is_alive;
    return is_state_unknown ? CUDA_ERROR_NOT_INITIALIZED : CUDA_SUCCESS;
}

static CUresult create_green(CUgreenCtx *out, CUdevResourceDesc resources, CUdevice device,
                             unsigned flags)
{
    MUST(resources == NULL && flags == 5);
    return create((CUcontext *)out, device);
}

static CUresult destroy_green(CUgreenCtx context)
{
    return destroy((CUcontext)context);
}

static CUresult allocate(CUdeviceptr *out, size_t bytes)
{
    uint64_t key;
    CUresult result = give_out(&key, bytes, current->device, current);
    *out = key;
    return result;
}

static CUresult free_memory(CUdeviceptr pointer)
{
    return take_back(pointer);
}

static CUresult create_array(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *array)
{
    return allocate((CUdeviceptr *)out, array->Width);
}

static CUresult create_mipmapped(CUmipmappedArray *out, const CUDA_ARRAY3D_DESCRIPTOR *array,
                                 unsigned levels)
{
    MUST(levels == 1);
    return allocate((CUdeviceptr *)out, array->Width);
}

struct hr_cuda_functions hr_cuda = {
    .cuCtxCreate = create_1,
    .cuCtxCreate_v2 = create_2,
    .cuCtxCreate_v3 = create_3,
    .cuCtxCreate_v4 = create_4,
    .cuCtxDestroy = destroy,
    .cuCtxDestroy_v2 = destroy,
    .cuCtxDetach = detach,
    .cuDevicePrimaryCtxRetain = retain,
    .cuDevicePrimaryCtxRelease = release,
    .cuDevicePrimaryCtxRelease_v2 = release,
    .cuDevicePrimaryCtxReset = reset,
    .cuDevicePrimaryCtxReset_v2 = reset,
    .cuDevicePrimaryCtxGetState = get_state,
    .cuGreenCtxCreate = create_green,
    .cuGreenCtxDestroy = destroy_green,
    .cuMemAlloc_v2 = allocate,
    .cuMemFree_v2 = free_memory,
    .cuArray3DCreate_v2 = create_array,
    .cuMipmappedArrayCreate = create_mipmapped,
    .cuCtxGetCurrent = get_current,
    .cuCtxGetDevice = get_device,
};

static void start(void)
{
    begin();
    admitted = measured = watchers = noted = trims = pools_emptied = made = attachments = 0;
    admitted_row = measured_row = emptied_device = -2;
    is_full = has_pools = is_state_unknown = false;
    trims_needed = 1;
}

/* ---- Making contexts ------------------------------------------------------------------ */

static CUresult make_1(CUcontext *out, CUdevice device)
{
    return cuCtxCreate(out, 5, device);
}

static CUresult make_2(CUcontext *out, CUdevice device)
{
    return cuCtxCreate_v2(out, 5, device);
}

static CUresult make_3(CUcontext *out, CUdevice device)
{
    return cuCtxCreate_v3(out, out, 3, 5, device);
}

static CUresult make_4(CUcontext *out, CUdevice device)
{
    return cuCtxCreate_v4(out, out, 5, device);
}

static CUresult make_green(CUcontext *out, CUdevice device)
{
    return cuGreenCtxCreate((CUgreenCtx *)out, NULL, device, 5);
}

static CUresult make_primary(CUcontext *out, CUdevice device)
{
    return cuDevicePrimaryCtxRetain(out, device);
}

static const struct {
    CUresult (*make)(CUcontext *out, CUdevice device);
    const char *name;
} makers[] = {{make_1, "1"}, {make_2, "2"},         {make_3, "3"},
              {make_4, "4"}, {make_green, "green"}, {make_primary, "primary"}};

static void check_making(void)
{
    for (size_t at = 0; at < sizeof makers / sizeof *makers; at++) {
        CUcontext context = NULL;
        struct hr_context known;
        bool is_own = at < 4;
        subject = makers[at].name;
        for (CUdevice device = 0; device < DEVICES; device++) {
            start();
            MUST(makers[at].make(&context, device) == CUDA_SUCCESS && context->device == device);
            MUST(admitted == 1 && admitted_row == hr_row_of_device(device) && calls == 1);
            MUST(watchers == 1 && noted == 1 && waits == 0);
            MUST(!is_own || strcmp(last_call, makers[at].name) == 0);
            MUST(hr_find_context(context, &known) == (makers[at].make != make_green));
        }
        start();
        is_refused = true;
        MUST(makers[at].make(&context, 0) == CUDA_ERROR_NOT_PERMITTED && calls == 0);
        start();
        next_result = CUDA_ERROR_INVALID_VALUE;
        MUST(makers[at].make(&context, 0) == CUDA_ERROR_INVALID_VALUE && admitted == 0);
        start();
        hr_holds = HR_HOLD_SUSPENDED | HR_HOLD_LIMITED;
        MUST(makers[at].make(&context, 0) == CUDA_SUCCESS && waits == 1);
        hr_holds = HR_HOLD_LIMITED;
        MUST(makers[at].make(&context, 0) == CUDA_SUCCESS && waits == 1);
        /* It does not fit: the driver has none afterwards, and what it then counts is read. */
        for (int pools = 0; pools < 2; pools++) {
            start();
            is_full = true;
            has_pools = pools == 1;
            trims_needed = 9;
            MUST(makers[at].make(&context, 0) == CUDA_ERROR_OUT_OF_MEMORY && calls == 2);
            MUST(admitted == 1 + pools && trims == pools && measured_row == 1);
            MUST(!context->is_alive && primaries[0].users == 0);
            MUST(!is_own || !hr_find_context(context, &known));
        }
        /* With what pools have kept it fits. */
        start();
        is_full = has_pools = true;
        MUST(makers[at].make(&context, 0) == CUDA_SUCCESS && trims == 1 && admitted == 2);
        MUST(context->is_alive && measured == 0);
    }
    /* What the driver has left of a green one is read, where it has ended it. */
    start();
    CUcontext green;
    MUST(make_green(&green, 0) == CUDA_SUCCESS);
    next_result = CUDA_ERROR_INVALID_VALUE;
    MUST(cuGreenCtxDestroy((CUgreenCtx)green) == CUDA_ERROR_INVALID_VALUE && measured == 0);
    MUST(cuGreenCtxDestroy((CUgreenCtx)green) == CUDA_SUCCESS && measured == HR_DEVICES);
    /* One that is there already counts for nothing more. */
    start();
    CUcontext context;
    MUST(make_primary(&context, 1) == CUDA_SUCCESS && make_primary(&context, 1) == CUDA_SUCCESS);
    MUST(admitted == 1 && primaries[1].users == 2);
    is_state_unknown = true;
    MUST(make_primary(&context, 1) == CUDA_SUCCESS && admitted == 2);
}

/* ---- Ending them ---------------------------------------------------------------------- */

/* One allocation of each kind that ends with its context. */
static void fill(CUcontext context)
{
    const CUDA_ARRAY3D_DESCRIPTOR array = {SIZE, 1, 0, 1, 1, 0};
    CUdeviceptr pointer;
    CUarray made_array;
    CUmipmappedArray mipmapped;
    current = context;
    MUST(cuMemAlloc_v2(&pointer, SIZE) == CUDA_SUCCESS);
    MUST(cuArray3DCreate_v2(&made_array, &array) == CUDA_SUCCESS);
    MUST(cuMipmappedArrayCreate(&mipmapped, &array, 1) == CUDA_SUCCESS);
    MUST_AGREE();
}

static CUresult (*const destroyers[])(CUcontext context) = {cuCtxDestroy, cuCtxDestroy_v2,
                                                            cuCtxDetach};

static void check_destruction(CUresult (*end)(CUcontext context))
{
    CUcontext first, second, elsewhere;
    struct hr_context known;
    start();
    MUST(make_2(&first, 0) == CUDA_SUCCESS && make_2(&second, 0) == CUDA_SUCCESS);
    MUST(make_2(&elsewhere, 1) == CUDA_SUCCESS);
    fill(first);
    fill(second);
    fill(elsewhere);
    /* Handles and mappings are nobody's, and a pool's are the pool's: also with the same owner. */
    MUST(hr_find_context(first, &known) && known.row == 1 && known.device == 0);
    struct hr_entry entry = {.key = 7, .bytes = 5, .owner = known.owner, .row = 1}, displaced;
    for (int space = HR_HANDLE; space <= HR_CONDITIONAL; space++) {
        entry.space = (uint8_t)space;
        MUST(hr_enter_book(&entry, &displaced));
    }
    entry.space = HR_POINTER;
    entry.in_pool = 1;
    MUST(hr_enter_book(&entry, &displaced));
    /* The driver does not end it: it goes on as it was. */
    next_result = CUDA_ERROR_NOT_INITIALIZED;
    current = first;
    MUST(end(first) == CUDA_ERROR_NOT_INITIALIZED && pools_emptied == 0);
    MUST_AGREE();
    fill(first);
    MUST(end(first) == CUDA_SUCCESS && there[0] == 3 * SIZE && there[1] == 3 * SIZE);
    MUST_AGREE();
    MUST(pools_emptied == 1 && emptied_device == 0 && measured == 1 && measured_row == 1);
    MUST(hr_take_from_books(HR_POINTER, 7, &entry) && hr_take_from_books(HR_HANDLE, 7, &entry));
    MUST(!hr_find_context(first, &known) && hr_find_context(second, &known));
    /* What is not known is the driver's business. */
    calls = 0;
    MUST(end(first) == CUDA_ERROR_INVALID_CONTEXT && end(NULL) == CUDA_ERROR_INVALID_CONTEXT);
    MUST(calls == 2 && pools_emptied == 1);
    MUST(end(elsewhere) == CUDA_SUCCESS && there[1] == 0 && measured_row == 0);
    MUST_AGREE();
    current = second;
    MUST(end(second) == CUDA_SUCCESS && there[0] == 0);
    MUST_AGREE();
}

static void check_attachments(void)
{
    CUcontext context;
    start();
    MUST(make_2(&context, 0) == CUDA_SUCCESS);
    fill(context);
    attachments = 1;
    MUST(cuCtxDetach(context) == CUDA_SUCCESS && pools_emptied == 0);
    MUST_AGREE();
    fill(context);
    MUST(cuCtxDetach(context) == CUDA_SUCCESS && there[0] == 0);
    MUST_AGREE();
}

static void check_primary(CUresult (*end)(CUdevice device), bool is_reset)
{
    CUcontext context, own;
    start();
    MUST(make_primary(&context, 0) == CUDA_SUCCESS && make_primary(&context, 0) == CUDA_SUCCESS);
    MUST(make_2(&own, 0) == CUDA_SUCCESS);
    fill(own);
    fill(context);
    next_result = CUDA_ERROR_NOT_INITIALIZED;
    MUST(end(0) == CUDA_ERROR_NOT_INITIALIZED && pools_emptied == 0);
    MUST_AGREE();
    fill(context);
    /* Somebody else has it still, but for a reset; what came before goes with the last one. */
    MUST(end(0) == CUDA_SUCCESS && pools_emptied == is_reset);
    MUST(there[0] == (is_reset ? 3 : 9) * SIZE);
    MUST_AGREE();
    if (!is_reset) {
        fill(context);
        MUST(end(0) == CUDA_SUCCESS && pools_emptied == 1 && there[0] == 3 * SIZE);
        MUST_AGREE();
    }
    MUST(emptied_device == 0 && measured == 1 && measured_row == 1);
    MUST(make_primary(&context, 0) == CUDA_SUCCESS);
    fill(context);
    /* A driver that does not say whether it lives: then it does not. */
    primaries[0].users = 1;
    MUST(end(0) == CUDA_SUCCESS && there[0] == 3 * SIZE);
    MUST_AGREE();
    /* A device that is none. */
    primaries[2].users = 1;
    MUST(end(2) == CUDA_SUCCESS);
    MUST_AGREE();
}

/* It can be destroyed by its handle, too, and lives again when it is made again. */
static void check_primary_by_handle(void)
{
    CUcontext context;
    start();
    MUST(make_primary(&context, 0) == CUDA_SUCCESS);
    fill(context);
    next_result = CUDA_ERROR_NOT_INITIALIZED;
    MUST(cuCtxDestroy_v2(context) == CUDA_ERROR_NOT_INITIALIZED);
    fill(context);
    MUST(cuDevicePrimaryCtxRelease_v2(0) == CUDA_SUCCESS && there[0] == 0);
    MUST_AGREE();
}

int main(void)
{
    check_making();
    subject = "ends";
    for (size_t at = 0; at < sizeof destroyers / sizeof *destroyers; at++)
        check_destruction(destroyers[at]);
    check_attachments();
    check_primary(cuDevicePrimaryCtxRelease, false);
    check_primary(cuDevicePrimaryCtxRelease_v2, false);
    check_primary(cuDevicePrimaryCtxReset, true);
    check_primary(cuDevicePrimaryCtxReset_v2, true);
    check_primary_by_handle();
    start();
    return 0;
}
