/*
 * Coverage-guided fuzzing of the core: a region is broken step by step, before it
 * is opened and under an open handle, and every answer is compared with a second,
 * simple reading of the same file (fuzz_oracle.h).  fuzz_format.h says what an input
 * means.
 */
#include <sanitizer/asan_interface.h>

#include "fuzz_run.h"
#include "fuzz_evidence.h"
#include "snapshot_view.h"

/* Enough for any state; more would only make inputs slow. */
enum { MAX_STEPS = 40 };

/* ---- One run ----------------------------------------------------------------------- */

static uint64_t *buffer;

struct run run;

struct poke take_poke(struct input *input)
{
    const uint8_t field = take8(input) % FUZZ_FIELDS;
    const uint32_t device = take8(input) % HR_DEVICES;
    const uint32_t slot = take16(input) % HR_SLOTS;
    const uint64_t value = take_value(input);
    const struct hr_layout *layout = run.file->view.layout;
    const size_t at = slot_at(&run.file->view, slot);
    const size_t used = at + layout->slot_used + (size_t)device * layout->slot_used_stride;
    const struct {
        size_t offset;
        uint32_t bytes;
    } fields[FUZZ_FIELDS] = {
        [FUZZ_MAGIC] = {0, 4},
        [FUZZ_MAJOR_VERSION] = {4, 4},
        [FUZZ_MINOR_VERSION] = {8, 4},
        [FUZZ_SM_INIT_FLAG] = {layout->sm_init_flag, 4},
        [FUZZ_OWNER_PID] = {layout->owner_pid, 8},
        [FUZZ_SEM] = {layout->sem, 8},
        [FUZZ_DEVICE_NUM] = {layout->device_num, 8},
        [FUZZ_LIMIT] = {layout->limit + device * 8, 8},
        [FUZZ_SM_LIMIT] = {layout->sm_limit + device * 8, 8},
        [FUZZ_PROC_NUM] = {layout->proc_num, 4},
        [FUZZ_UTILIZATION_SWITCH] = {layout->utilization_switch, 4},
        [FUZZ_RECENT_KERNEL] = {layout->recent_kernel, 4},
        [FUZZ_PRIORITY] = {layout->priority, 4},
        [FUZZ_LAST_KERNEL_TIME] = {layout->last_kernel_time, 8},
        [FUZZ_SLOT_PID] = {at + layout->slot_pid, 4},
        [FUZZ_SLOT_HOSTPID] = {at + layout->slot_hostpid, 4},
        [FUZZ_SLOT_STATUS] = {at + layout->slot_status, 4},
        [FUZZ_SLOT_SEQLOCK] = {seqlock_offset(layout) == HR_ABSENT ? HR_ABSENT
                                                                   : at + seqlock_offset(layout),
                               8},
        [FUZZ_SLOT_TOTAL] = {used + 32, 8},
        [FUZZ_SLOT_CONTEXT] = {used, 8},
        [FUZZ_SLOT_MONITOR] = {at + layout->slot_monitorused + device * 8, 8},
        [FUZZ_SLOT_SM] = {layout->slot_util == HR_ABSENT
                              ? HR_ABSENT
                              : at + layout->slot_util + device * layout->slot_util_stride + 16,
                          8},
        [FUZZ_SEM_POSTINIT] = {layout->sem_postinit, 8},
    };
    const bool is_there = fields[field].offset < HR_ABSENT;
    return (struct poke){.offset = is_there ? fields[field].offset : 0,
                         .bytes = is_there ? fields[field].bytes : 0,
                         .value = value};
}

static void do_poke(struct input *input)
{
    const struct poke poke = take_poke(input);
    if (poke.bytes != 0)
        file_poke(run.file, poke.offset, poke.value, poke.bytes);
}

static void do_text(struct input *input)
{
    const uint32_t device = take8(input) % HR_DEVICES;
    uint8_t text[HR_UUID_BYTES] = {0}, start[4];
    for (int i = 0; i < 4; i++)
        start[i] = take8(input);
    const uint32_t length = take8(input) % (HR_UUID_BYTES + 1);
    for (uint32_t i = 0; i < length; i++)
        text[i] = i < 4 ? start[i] : (uint8_t)('0' + i % 10);
    for (uint32_t i = 0; i < HR_UUID_BYTES; i += 8) {
        uint64_t word;
        memcpy(&word, text + i, 8);
        file_poke(run.file, run.file->view.layout->uuids + (size_t)device * HR_UUID_BYTES + i, word,
                  8);
    }
}

static void do_resize(struct input *input)
{
    static const size_t sizes[] = {0,       4096,    HOT_BYTES, 2048,    804680,  804681,
                                   1197896, 1197897, 2008952,   2008985, 2008984, MAX_FILE - 128};
    const size_t size = sizes[take8(input) % (sizeof sizes / sizeof sizes[0])];
    const int8_t more = (int8_t)take8(input);
    file_resize(run.file, more < 0 && size < (size_t)-more ? 0 : size + (size_t)more);
}

/* ---- Opening ----------------------------------------------------------------------- */

static void require_open_code(int code)
{
    if (code >= 0)
        REQUIRE(code < HR_LAYOUTS);
    else
        REQUIRE_ONE_OF(code, HR_ENOTREGION, HR_ENOTREADY, HR_EAMBIGUOUS, HR_ECORRUPT, HR_EINVAL,
                       HR_EREADONLY);
}

static int open_once(const char *path, uint32_t layout)
{
    hr_region *region;
    const int code = hr_open(path, HR_READ, layout, 0, &region, &call_error);
    hr_free(&region);
    return code;
}

static int identify(const char *path, uint32_t layout)
{
    const int code = open_once(path, layout);
    require_open_code(code);
    REQUIRE((code == HR_EINVAL) == (layout > HR_LAYOUTS));
    if (code >= 0 && layout < HR_LAYOUTS)
        REQUIRE(code == (int)layout);
    if (code >= 0)
        REQUIRE(open_once(path, (uint32_t)code) == code);
    if (code == HR_EAMBIGUOUS) {
        const struct hr_error detail = call_error;
        REQUIRE(__builtin_popcount(detail.candidates) > 1);
        for (uint32_t id = 0; id < HR_LAYOUTS; id++)
            REQUIRE((detail.candidates & 1u << id) == 0 || open_once(path, id) == (int)id);
    }
    return code;
}

static void close_region(void)
{
    if (run.region == NULL)
        return;
    writers_close();
    REQUIRE(hr_snapshot(run.region, buffer, HR_SNAPSHOT_MAX_BYTES, &call_error) == HR_ECLOSED);
    REQUIRE(hr_is_stale(run.region, &call_error) == HR_ECLOSED);
    hr_free(&run.region);
    run.region = NULL;
}

static void open_region(uint32_t flags, uint32_t layout)
{
    close_region();
    const int identified = identify(run.file->path, layout);
    const int code = hr_open(run.file->path, flags, layout, 0, &run.region, &call_error);
    require_open_code(code);
    REQUIRE((code >= 0) == (run.region != NULL));
    if (flags > HR_KEEP) {
        REQUIRE(code == HR_EINVAL);
        return;
    }
    if (identified >= 0) {
        /* What is too new is read, where it passes for what is known, and never opened for more. */
        const struct view file = {&hr_layouts[identified], run.file->view.bytes, 0};
        const bool is_newer = oracle_is_newer(&file);
        REQUIRE(code == (is_newer && flags == HR_WRITE ? HR_EREADONLY : identified));
        REQUIRE(!is_newer || oracle_passes_for_newest(&file));
        run.version = oracle_version(&file);
    } else {
        REQUIRE(code == identified);
    }
    if (code < 0)
        return;
    run.open_as = (uint32_t)code;
    run.writable = flags == HR_WRITE;
    run.is_kept = flags == HR_KEEP;
    /* Perhaps not where the layout has it in which the file was made. */
    const struct hr_layout *opened = &hr_layouts[code];
    file_track(run.file, opened->proc_num, opened->size - opened->proc_num);
    struct hr_info info;
    hr_get_info(run.region, &info);
    REQUIRE(info.layout == run.open_as && info.writable == run.writable);
    REQUIRE(info.mapped_bytes >= hr_layouts[code].size);
    REQUIRE(info.version == run.version);
}

/* ---- Calls ------------------------------------------------------------------------- */

/* `bytes` of the buffer, and not one more. */
static void snapshot(size_t bytes)
{
    if (bytes > HR_SNAPSHOT_MAX_BYTES)
        bytes = HR_SNAPSHOT_MAX_BYTES;
    const char *end = (const char *)buffer + bytes;
    ASAN_POISON_MEMORY_REGION(end, HR_SNAPSHOT_MAX_BYTES - bytes);
    const int code = hr_snapshot(run.region, buffer, bytes, &call_error);
    ASAN_UNPOISON_MEMORY_REGION(end, HR_SNAPSHOT_MAX_BYTES - bytes);
    const struct hr_snapshot *head = (const struct hr_snapshot *)(const void *)buffer;
    if (code != HR_OK)
        REQUIRE_ONE_OF(code, HR_ENOSPACE, HR_ESTALE, HR_ECORRUPT);
    else
        oracle_require_sane(head, bytes);

    const struct hr_error detail = call_error;
    if (code == HR_ENOSPACE)
        REQUIRE(detail.wanted > bytes && detail.wanted <= HR_SNAPSHOT_MAX_BYTES);
    if (!is_whole())
        return;
    const struct view view = as_opened();
    size_t wanted = 0;
    const int expected = oracle_snapshot_code(&view, bytes, &wanted);
    REQUIRE(code == expected);
    if (code == HR_ENOSPACE)
        REQUIRE(detail.wanted == wanted);
    if (code == HR_OK)
        oracle_require_same(head, &view);
}

static void get(uint32_t value, uint32_t device)
{
    const uint64_t found = live_value(run.region, value, device);
    const int code = found == NO_VALUE ? (int)call_error.code : HR_OK;
    if (code != HR_OK)
        REQUIRE_ONE_OF(code, HR_ESTALE, HR_ECORRUPT, HR_EINVAL);
    const uint32_t end = value == HR_VALUE_SEQLOCK ? HR_SLOTS : HR_DEVICES;
    if (value > HR_VALUE_BURST || device >= end) {
        REQUIRE(code == HR_EINVAL || code == HR_ESTALE);
        return;
    }
    /* Its word is behind what is compared. */
    if (value == HR_VALUE_BURST)
        REQUIRE(code != HR_OK || found <= 1);
    if (!is_whole() || value == HR_VALUE_BURST)
        return;
    const struct view view = as_opened();
    uint64_t expected;
    REQUIRE(code == oracle_value(&view, value, device, &expected));
    REQUIRE(code != HR_OK || found == expected);
}

/* A table of the set, in exactly the memory that it may use. */
static uint64_t *columns(const void *set, uint32_t table, size_t rows, size_t columns, size_t step)
{
    uint64_t *cells = malloc((rows == 0 ? 0 : (columns - 1) * step + rows) * sizeof *cells + 1);
    REQUIRE(cells != NULL);
    hr_columns(set, 2, table, cells, step);
    return cells;
}

static void check_columns(const void *set, const struct hr_set_size *size, size_t apart)
{
    const size_t step = size->usages + apart;
    uint64_t *regions = columns(set, HR_TABLE_REGIONS, 2, HR_REGION_COLUMNS, 2);
    /* Behind it is the first row of the processes alone. */
    REQUIRE(regions[(HR_REGION_COLUMNS - 2) * 2] == size->devices);
    REQUIRE(regions[5 * 2] == size->processes);
    free(regions);
    free(columns(set, HR_TABLE_DEVICES, size->devices, HR_DEVICE_COLUMNS, size->devices));
    free(columns(set, HR_TABLE_UUIDS, size->devices * HR_UUID_BYTES / 8, 1, 0));
    free(columns(set, HR_TABLE_PROCESSES, size->processes, HR_PROCESS_COLUMNS, size->processes));
    uint64_t *usages = columns(set, HR_TABLE_USAGES, size->usages, HR_USAGE_COLUMNS, step);
    for (uint32_t row = 0; row < size->usages; row++)
        REQUIRE(usages[row] == row / size->devices);
    free(usages);
}

static void read_set(size_t bytes, size_t apart)
{
    struct hr_set_size size;
    /* Exactly as large as it may be used. */
    void *set = malloc(bytes);
    REQUIRE(set != NULL);
    hr_region *const regions[2] = {run.region, NULL};
    const int code = hr_read_set(regions, 2, set, bytes, UINT32_MAX, &size, &call_error);
    REQUIRE(code == 1 || code == 2 || code == HR_ENOSPACE);
    if (code == HR_ENOSPACE) {
        require_detail(code);
        REQUIRE(size.bytes > bytes);
        free(set);
        return;
    }
    REQUIRE(size.bytes <= bytes);
    REQUIRE(set_snapshot(set, 1)->code == HR_ECLOSED);
    const struct hr_snapshot *head = set_snapshot(set, 0);
    REQUIRE((head->code == HR_OK) == (code == 1));
    if (head->code != HR_OK) {
        REQUIRE(head->code == HR_ESTALE || head->code == HR_ECORRUPT);
        REQUIRE(set_failure(set, 0)->code == head->code);
        REQUIRE(size.devices == 0 && size.processes == 0 && size.usages == 0);
    } else {
        REQUIRE(head->layout == run.open_as);
        REQUIRE(size.processes == (uint32_t)head->process_count);
        REQUIRE(size.usages == size.devices * size.processes);
        oracle_require_sane(head, bytes);
    }
    check_columns(set, &size, apart);
    if (is_whole()) {
        const struct view view = as_opened();
        REQUIRE((head->code == HR_ESTALE) == !oracle_good_header(&view));
        if (head->code == HR_OK)
            oracle_require_same(head, &view);
    }
    free(set);
}

static void do_call(uint8_t step, struct input *input)
{
    if (step == FUZZ_OPEN) {
        const uint8_t flags = take8(input) % 3;
        open_region(flags, take8(input) % (HR_LAYOUTS + 2));
        return;
    }
    if (run.region == NULL)
        return;
    switch (step) {
    case FUZZ_SNAPSHOT: {
        const size_t bytes = (size_t)take16(input) * 8;
        snapshot(bytes + take8(input));
        break;
    }
    case FUZZ_GET: {
        const uint32_t value = take8(input) % (HR_VALUE_BURST + 2);
        get(value, value == HR_VALUE_SEQLOCK ? take16(input) % (HR_SLOTS + 1)
                                             : take8(input) % (HR_DEVICES + 1));
        break;
    }
    case FUZZ_READ_SET: {
        const size_t bytes = (size_t)take16(input) * 8;
        read_set(bytes, take8(input));
        break;
    }
    case FUZZ_IS_STALE:
        REQUIRE(hr_is_stale(run.region, &call_error) == !is_whole());
        break;
    case FUZZ_CLOSE:
        close_region();
        break;
    default:
        break;
    }
}

/* With HR_FUZZ_TRACE in the environment each step is shown before it is done. */
static bool is_traced;

static void trace(const struct input *input)
{
    static const char *const names[FUZZ_STEPS] = {
        "poke",   "poke-at",  "text",       "resize",   "identify",  "open",       "snapshot",
        "get",    "read-set", "edit",       "is-stale", "close",     "slot",       "meanwhile",
        "proc",   "process",  "other-lock", "lock",     "unlock",    "lock-state", "recover",
        "attach", "detach",   "charge",     "release",  "edit-slot", "reap",       "repair",
        "note",   "gather",   "by"};
    fprintf(stderr, "%-10s", names[*input->at % FUZZ_STEPS]);
    for (int i = 1; i <= 16 && input->at + i < input->end; i++)
        fprintf(stderr, " %u", input->at[i]);
    fprintf(stderr, "\n");
}

static void do_step(struct input *input)
{
    if (is_traced)
        trace(input);
    const uint8_t step = take8(input) % FUZZ_STEPS;
    if (step < FUZZ_NOTE)
        evidence_region_changes();
    switch (step) {
    case FUZZ_POKE:
        do_poke(input);
        break;
    case FUZZ_POKE_AT: {
        const uint32_t low = take16(input);
        const size_t offset = low | (size_t)take8(input) << 16;
        file_poke(run.file, offset % run.file->whole, take_value(input), 8);
        break;
    }
    case FUZZ_TEXT:
        do_text(input);
        break;
    case FUZZ_RESIZE:
        do_resize(input);
        break;
    case FUZZ_IDENTIFY:
        identify(run.file->path, take8(input) % (HR_LAYOUTS + 2));
        break;
    default:
        if (!writers_step(step, input) && !edit_step(step, input))
            do_call(step, input);
    }
}

int LLVMFuzzerInitialize(int *argc, char ***argv);

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    is_traced = getenv("HR_FUZZ_TRACE") != NULL;
    files_make();
    system_make();
    buffer = malloc(HR_SNAPSHOT_MAX_BYTES);
    REQUIRE(buffer != NULL);
    return 0;
}

/* Far too short for a region, and yet to be told apart. */
static void identify_raw(const uint8_t *data, size_t size)
{
    const char *path = raw_file(data, size);
    for (uint32_t layout = 0; layout <= HR_LAYOUTS; layout++)
        REQUIRE(identify(path, layout) < 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    const uint8_t choice = data[0] % (FUZZ_RAW + 1);
    if (choice == FUZZ_RAW) {
        identify_raw(data + 1, size - 1);
        return 0;
    }
    run.file = file_of_layout(choice);
    writers_begin();
    struct input input = {data + 1, data + size};
    for (int steps = 0; steps < MAX_STEPS && input.at < input.end; steps++)
        do_step(&input);

    /* Whatever it has become by now: everything once. */
    if (run.region == NULL)
        open_region(HR_WRITE, HR_LAYOUTS);
    if (run.region == NULL)
        open_region(HR_READ, HR_LAYOUTS);
    if (run.region != NULL) {
        snapshot(HR_SNAPSHOT_MAX_BYTES);
        /* A fault costs far more than an answer: the sanitizer reads our whole memory map. */
        for (uint32_t value = 0; value <= HR_VALUE_PROC_NUM && is_whole(); value++)
            get(value, 1);
        read_set(3 * sizeof(struct hr_snapshot) + HR_SNAPSHOT_MAX_BYTES, 9);
    }
    close_region();
    writers_end();
    file_mend(run.file);
    return 0;
}
