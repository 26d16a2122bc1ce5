/* What Python sees of the core.  csrc/region.h is the manual. */

/* ---- layout.h ----------------------------------------------------------- */

#define HR_DEVICES ...
#define HR_SLOTS ...
#define HR_UUID_BYTES ...
#define HR_ABSENT ...
#define HR_LAYOUTS ...

struct hr_layout {
    const char *name;
    uint32_t id;
    uint32_t major_version;
    uint32_t minor_version;
    uint32_t size;
    uint32_t sm_init_flag;
    uint32_t owner_pid;
    uint32_t sem;
    uint32_t sem_postinit;
    uint32_t device_num;
    uint32_t uuids;
    uint32_t limit;
    uint32_t sm_limit;
    uint32_t procs;
    uint32_t proc_num;
    uint32_t utilization_switch;
    uint32_t recent_kernel;
    uint32_t priority;
    uint32_t last_kernel_time;
    uint32_t slot_stride;
    uint32_t slot_pid;
    uint32_t slot_hostpid;
    uint32_t slot_seqlock;
    uint32_t slot_used;
    uint32_t slot_used_stride;
    uint32_t slot_monitorused;
    uint32_t slot_util;
    uint32_t slot_util_stride;
    uint32_t slot_status;
};

extern const struct hr_layout hr_layouts[];

/* ---- region.h ----------------------------------------------------------- */

const char *hr_core_version(void);

enum hr_code {
    HR_OK, HR_ENOTFOUND, HR_EACCESS, HR_ENOTREGION, HR_ENOTREADY, HR_EAMBIGUOUS, HR_ECORRUPT,
    HR_ESTALE, HR_ECLOSED, HR_EFORKED, HR_EREADONLY, HR_ECONFLICT, HR_EBELOWUSE, HR_EEXISTS,
    HR_ENOSPACE, HR_EINVAL, HR_ESYSTEM, HR_ETIMEOUT, HR_ENOTRECOVERABLE, HR_EMEMORYLIMIT,
    HR_EFULL, HR_ENOPROCESS, HR_EBUSY, HR_ENODEVICE, HR_EUNWATCHED, ...
};

enum hr_reason {
    HR_REASON_NONE, HR_REASON_SYMLINK, HR_REASON_DIRECTORY, HR_REASON_FIFO, HR_REASON_SOCKET, HR_REASON_DEVICE,
    HR_REASON_EMPTY, HR_REASON_SHORT, HR_REASON_MAGIC_ZERO, HR_REASON_MAGIC, HR_REASON_VERSION,
    HR_REASON_DEVICE_NUM, HR_REASON_PROC_NUM, HR_REASON_UUID, HR_REASON_TRUNCATED, HR_REASON_REPLACED,
    HR_REASON_LAYOUT, ...
};

struct hr_detail {
    int32_t code;
    int32_t sys_errno;
    int32_t reason;
    int32_t device;
    uint32_t candidates;
    uint32_t layout;
    uint64_t file_size;
    uint64_t found;
    uint64_t wanted;
    uint64_t limit;
    uint32_t kind;
};

void hr_take_detail(int code, struct hr_detail *out);

typedef struct hr_region hr_region;

#define HR_READ ...
#define HR_WRITE ...
#define HR_KEEP ...
#define HR_NO_LINK ...

struct hr_info {
    uint32_t layout;
    uint32_t writable;
    uint64_t inode;
    uint64_t device_id;
    uint64_t mapped_bytes;
    uint64_t address;
    uint64_t version;
};

int hr_identify(const char *path, uint32_t layout);
int hr_open_wait(const char *path, uint32_t flags, uint32_t layout, uint64_t timeout_ns, hr_region **out);
void hr_get_info(const hr_region *region, struct hr_info *out);
int hr_is_stale(hr_region *region);
int hr_read_burst(hr_region *region);
int hr_set_burst(hr_region *region, int on, uint32_t flags);

int hr_close(hr_region *region);
void hr_free_held(hr_region **held);
void hr_leave_all(void);

struct hr_create_spec {
    uint32_t layout;
    int32_t priority;
    uint32_t device_num;
    uint64_t limit[...];
    uint64_t sm_limit[...];
    char uuids[...][...];
};

int hr_create(const char *path, const struct hr_create_spec *spec);

struct hr_snapshot {
    uint64_t taken_at_ns;
    uint64_t owner_pid;
    uint64_t last_kernel_time;
    uint64_t semaphore;
    uint32_t settled;
    uint32_t span;
    uint32_t shown;
    uint32_t device_num;
    int32_t proc_num;
    int32_t priority;
    int32_t utilization_switch;
    int32_t recent_kernel;
    int32_t code;
    uint32_t layout;
};

struct hr_process {
    int32_t pid;
    int32_t host_pid;
    int32_t status;
    uint32_t settled;
};

struct hr_usage {
    uint64_t total;
    uint64_t context, module, data;
    uint64_t offset;
    uint64_t monitor;
    uint64_t sm, enc, dec;
};

struct hr_device {
    uint64_t limit;
    uint64_t sm_limit;
    struct hr_usage sums;
    char uuid[...];
};

#define HR_SNAPSHOT_BUDGET_NS ...
#define HR_SNAPSHOT_MAX_BYTES ...

int hr_snapshot(hr_region *region, void *buffer, size_t bytes);

#define HR_VALUE_MEMORY_LIMIT ...
#define HR_VALUE_SM_LIMIT ...
#define HR_VALUE_MEMORY_USED ...
#define HR_VALUE_PRIORITY ...
#define HR_VALUE_UTILIZATION_SWITCH ...
#define HR_VALUE_RECENT_KERNEL ...
#define HR_VALUE_LAST_KERNEL_TIME ...
#define HR_VALUE_DEVICE_NUM ...
#define HR_VALUE_PROC_NUM ...
#define HR_VALUE_DEVICES ...
#define HR_NO_VALUE ...

int hr_read_value(hr_region *region, uint32_t value, uint32_t device, uint64_t *out);
uint64_t hr_get(hr_region *region, uint32_t value, uint32_t device);

struct hr_member {
    uint64_t at;
    uint32_t first_device, first_process, first_usage;
    uint32_t devices;
};

struct hr_set_size {
    uint64_t bytes;
    uint32_t devices, processes, usages;
};

int hr_read_set_capped(hr_region *const *regions, uint32_t count, void *buffer, size_t bytes,
                       uint32_t most_usages, struct hr_set_size *size);

#define HR_TABLE_REGIONS ...
#define HR_TABLE_DEVICES ...
#define HR_TABLE_UUIDS ...
#define HR_TABLE_PROCESSES ...
#define HR_TABLE_USAGES ...

void hr_columns(const void *set, uint32_t count, uint32_t which, void *cells, size_t step);

/* ---- process_stats.h ---------------------------------------------------- */

struct hr_process_stat {
    uint64_t start_time_ticks;
    uint64_t address_space_bytes;
    uint64_t stack;
    uint64_t minor_faults;
    uint64_t major_faults;
    int64_t error;
};

void hr_read_process_stats(int proc, const uint32_t *pids, uint32_t count,
                           struct hr_process_stat *out);

#define HR_MEMORY ...
#define HR_SM ...
#define HR_PRIORITY ...
#define HR_SWITCH ...
#define HR_RECENT_KERNEL ...
#define HR_EXPECT ...
#define HR_PERCENT ...
#define HR_FORCE ...
#define HR_DRY_RUN ...
#define HR_ALL_DEVICES ...
#define HR_EDITS_MAX ...

struct hr_edit {
    uint32_t kind;
    int32_t device;
    uint32_t flags;
    uint32_t stops_launches;
    uint64_t value, expected;
    const char *uuid;
    uint64_t before, after;
};

int hr_edit(hr_region *region, struct hr_edit *edits, uint32_t count, uint32_t room,
            uint32_t flags);

/* ---- limiter.h ---------------------------------------------------------- */

typedef struct hr_limiter hr_limiter;

int hr_limiter_new(uint32_t sm_count, uint32_t max_threads_per_sm, uint32_t sm_limit,
                   hr_region *region, uint32_t device, hr_limiter **out);
void hr_limiter_free(hr_limiter *limiter);
int hr_limiter_acquire(hr_limiter *limiter, int64_t blocks, int64_t timeout_ns);
int hr_limiter_tick(hr_limiter *limiter, int32_t util_percent);
int64_t hr_limiter_share(const hr_limiter *limiter);
int64_t hr_limiter_tokens(const hr_limiter *limiter);
int64_t hr_limiter_total(const hr_limiter *limiter);

/* ---- lock.h ------------------------------------------------------------- */

#define HR_REASON_ALIVE ...
#define HR_REASON_UNKNOWN ...
#define HR_REASON_BUSY ...
#define HR_REASON_TWO_INODES ...
#define HR_REASON_FOREIGN_MAPPING ...
#define HR_REASON_SAME_PID ...
#define HR_REASON_UNWATCHED ...
#define HR_REASON_RECOVERING ...
#define HR_ELOST ...
#define HR_EATTACHED ...
#define HR_EDETACHED ...
#define HR_EINTERRUPTED ...
#define HR_FOREIGN_OWNER ...
#define HR_OWNERLESS_NS ...

struct hr_ticket {
    hr_region *region;
    uint64_t turn;
};

int hr_lock(hr_region *region, struct hr_ticket *ticket, uint64_t timeout_ns);
void hr_end_lock(struct hr_ticket *ticket);
int hr_unlock(hr_region *region);

#define HR_DEAD ...
#define HR_ALIVE ...
#define HR_LIVENESS_UNKNOWN ...

struct hr_lock_state {
    uint32_t value;
    uint32_t waiters;
    uint32_t postinit;
    uint32_t is_ours;
    uint32_t is_damaged;
    uint64_t owner_pid;
    uint64_t signature;
    int32_t owner_pid_here;
    uint32_t owner_liveness;
};

int hr_get_lock_state(hr_region *region, const char *proc, struct hr_lock_state *out);

#define HR_RECOVERED_OWNER ...
#define HR_RECOVERED_OWNERLESS ...
#define HR_RECOVERED_VALUE ...
#define HR_RECOVERED_POSTINIT ...

struct hr_recovery {
    uint32_t done;
    uint32_t value;
    uint64_t signature;
    uint64_t watched_ns;
    uint64_t postinit_watched_ns;
    uint64_t interrupted_ns;
};

int hr_recover_lock(hr_region *region, const char *proc, uint64_t watch_ns,
                    struct hr_recovery *recovery);

/* ---- slots.h ------------------------------------------------------------ */

int hr_attach(hr_region *region, struct hr_ticket *ticket, uint64_t timeout_ns);
void hr_end_attachment(struct hr_ticket *ticket);
int hr_detach(hr_region *region, uint64_t timeout_ns);

#define HR_CONTEXT ...
#define HR_MODULE ...
#define HR_DATA ...

int hr_charge(hr_region *region, uint32_t device, uint32_t kind, uint64_t bytes,
              uint64_t timeout_ns);
int hr_release(hr_region *region, uint32_t device, uint32_t kind, uint64_t bytes,
               uint64_t timeout_ns);

#define HR_SLOT_HOST_PID ...
#define HR_SLOT_STATUS ...
#define HR_SLOT_MONITOR_USED ...
#define HR_SLOT_SM ...
#define HR_SLOT_ENC ...
#define HR_SLOT_DEC ...

struct hr_slot_edit {
    uint32_t value;
    uint32_t device;
    uint64_t to;
    uint64_t before;
};

int hr_edit_slot(hr_region *region, int32_t pid, struct hr_slot_edit *edits, uint32_t count,
                 uint32_t dry_run, uint64_t timeout_ns);

#define HR_REAP_REMOVED ...
#define HR_REAP_EMPTIED ...
#define HR_REAP_ALIVE ...
#define HR_REAP_UNKNOWN ...
#define HR_REAP_CUT_SHORT ...

struct hr_reap {
    int32_t pid;
    uint32_t what;
    uint64_t bytes;
};

struct hr_stranger {
    uint64_t start_time_ticks;
    uint32_t pid;
};

int hr_reap_without(hr_region *region, const char *proc, const struct hr_stranger *strangers,
                    uint32_t stranger_count, const int32_t *pids, uint32_t count, uint32_t dry_run,
                    uint64_t timeout_ns, struct hr_reap *out);

#define HR_REPAIR_DONE ...
#define HR_REPAIR_LEFT ...
#define HR_REPAIR_CUT_SHORT ...

struct hr_slot_repair {
    int32_t pid;
    uint32_t what;
};

struct hr_process_list;
int hr_list_processes(const char *proc, uint64_t cpu_ns, struct hr_process_list **out);
int hr_judge_slots_without(hr_region *region, struct hr_process_list *list,
                           const struct hr_stranger *strangers, uint32_t stranger_count,
                           const int32_t *pids, uint32_t count, uint64_t cpu_ns, uint32_t *lives);
void hr_free_process_list(struct hr_process_list *list);

int hr_repair_slots(hr_region *region, const char *proc, uint32_t dry_run, uint64_t timeout_ns,
                    struct hr_slot_repair *out);
