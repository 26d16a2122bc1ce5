/*
 * Moments that chance seldom hits, made to happen: a look into /proc that takes
 * long while the region changes, and what a death or libvgpu leaves half done.
 *
 * The /proc is one of the test's own.  One process in it has a FIFO for its maps, so
 * that whoever scans stops there until the test lets go.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "call_error.h"
#include "check.h"
#include "region.h"
#include "region_file.h"

#define ONE_SECOND UINT64_C(1000000000)

/* Pids that no process has: above every pid_max, below the signatures of this library. */
enum { DEAD = 5000001, NEWCOMER = 5000002, OTHER = 5000003, WATCHED = 5000009 };

/* ---- A process of the region, as libvgpu would be one ------------------------------ */

static void put_slot(const struct region_file *file, uint32_t index, int32_t pid, uint64_t bytes)
{
    const struct hr_layout *layout = file->layout;
    memset(file->bytes + slot_at(file, index, 0), 0, layout->slot_stride);
    poke32(file, slot_at(file, index, layout->slot_status), 1);
    poke64(file, slot_at(file, index, layout->slot_used) + 16, bytes);
    poke64(file, slot_at(file, index, layout->slot_used) + 32, bytes);
    poke32(file, slot_at(file, index, layout->slot_pid), (uint32_t)pid);
    if (peek32(file, layout->proc_num) <= index)
        poke32(file, layout->proc_num, index + 1);
}

static int32_t pid_in(const struct region_file *file, uint32_t index)
{
    return (int32_t)peek32(file, slot_at(file, index, file->layout->slot_pid));
}

static uint64_t bytes_in(const struct region_file *file, uint32_t index)
{
    return peek64(file, slot_at(file, index, file->layout->slot_used) + 32);
}

static void take_as(const struct region_file *file, uint64_t owner)
{
    poke64(file, file->layout->sem, 0);
    poke64(file, file->layout->owner_pid, owner);
}

static void check_free(const struct region_file *file)
{
    CHECK_EQ(peek64(file, file->layout->sem), 1);
    CHECK_EQ(peek64(file, file->layout->owner_pid), 0);
}

/* ---- A /proc in which a scan can be held up ------------------------------------------ */

struct fake_proc {
    char path[256];
    char fifo[320];
    char mapping[512]; /* this process's own line about the region in its maps */
};

static void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "we");
    NEED(file != NULL);
    NEED(fputs(text, file) >= 0 && fclose(file) == 0);
}

static void find_mapping(const struct region_file *file, struct fake_proc *proc)
{
    FILE *maps = fopen("/proc/self/maps", "re");
    NEED(maps != NULL);
    bool found = false;
    while (!found && fgets(proc->mapping, sizeof proc->mapping, maps) != NULL)
        found = strstr(proc->mapping, file->path) != NULL;
    fclose(maps);
    NEED(found);
}

/* As it would look with this pid and a mapping, or none (""); NULL: the watched one. */
static void add_process(const struct fake_proc *proc, int32_t pid, const char *maps)
{
    char path[400], text[64];
    snprintf(path, sizeof path, "%s/%d", proc->path, pid);
    NEED(mkdir(path, 0755) == 0);
    snprintf(path, sizeof path, "%s/%d/status", proc->path, pid);
    /* By its pid the watched one could be the dead one, so that its maps are asked for. */
    char inner[16] = "";
    if (maps == NULL)
        snprintf(inner, sizeof inner, "\t%d", DEAD);
    snprintf(text, sizeof text, "State:\tS (sleeping)\nNSpid:\t%d%s\n", pid, inner);
    write_file(path, text);
    snprintf(path, sizeof path, "%s/%d/maps", proc->path, pid);
    if (maps != NULL)
        write_file(path, maps);
    else
        NEED(mkfifo(path, 0644) == 0);
}

static void make_proc(struct fake_proc *proc, const struct region_file *file)
{
    static const char other[] = "00400000-00401000 r--p 00000000 00:00 1 /other\n";
    char path[400];
    find_mapping(file, proc);
    const char *parent = getenv("TMPDIR");
    snprintf(proc->path, sizeof proc->path, "%s/hr-proc-XXXXXX",
             parent != NULL && *parent != '\0' ? parent : "/tmp");
    NEED(mkdtemp(proc->path) != NULL);
    add_process(proc, 1, other);
    snprintf(path, sizeof path, "%s/1/ns", proc->path);
    NEED(mkdir(path, 0755) == 0);
    snprintf(path, sizeof path, "%s/1/ns/pid", proc->path);
    NEED(symlink("pid:[4026531836]", path) == 0);
    add_process(proc, WATCHED, NULL);
    snprintf(proc->fifo, sizeof proc->fifo, "%s/%d/maps", proc->path, WATCHED);
}

static void remove_proc(const struct fake_proc *proc)
{
    char command[320];
    snprintf(command, sizeof command, "rm -r '%s'", proc->path);
    NEED(system(command) == 0);
}

/* ---- Something happens while another thread scans -------------------------------------- */

struct scan {
    hr_region *region;
    const struct fake_proc *proc;
    int (*call)(struct scan *scan);
    int code;
    struct hr_slot_result reaped[HR_SLOTS];
    atomic_int over;
};

static void *run_scan(void *argument)
{
    struct scan *scan = argument;
    scan->code = scan->call(scan);
    atomic_store(&scan->over, 1);
    return NULL;
}

static void let_scan_pass(int fifo)
{
    static const char other[] = "00400000-00401000 r--p 00000000 00:00 1 /other\n";
    ssize_t written = write(fifo, other, sizeof other - 1);
    /* The scan that was here when the FIFO was opened may have read its end by now. */
    NEED(written == sizeof other - 1 || (written < 0 && errno == EPIPE));
    close(fifo);
}

static void change_nothing(const struct region_file *file, const struct fake_proc *proc)
{
    (void)file;
    (void)proc;
}

/* The change happens once the scan has reached the watched process; later scans just pass. */
static void change_during(struct scan *scan, const struct region_file *file,
                          void (*change)(const struct region_file *, const struct fake_proc *))
{
    pthread_t thread;
    atomic_store(&scan->over, 0);
    NEED(pthread_create(&thread, NULL, run_scan, scan) == 0);
    bool reached = false;
    while (!atomic_load(&scan->over)) {
        int fifo = open(scan->proc->fifo, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
        if (fifo >= 0 && !reached)
            change(file, scan->proc);
        if (fifo >= 0) {
            reached = true;
            let_scan_pass(fifo);
        }
        usleep(1000);
    }
    pthread_join(thread, NULL);
    /* A search that need not look at the watched process has nothing to be disturbed in. */
    CHECK(reached || change == change_nothing);
}

static int call_reap(struct scan *scan)
{
    return hr_reap(scan->region, scan->proc->path, NULL, 0, NULL, 0, 0, ONE_SECOND, scan->reaped,
                   &call_error);
}

static int call_recover(struct scan *scan)
{
    return recover_lock(scan->region, scan->proc->path, 0);
}

/* A process starts, maps the file and takes a slot. */
static void attach_newcomer(const struct region_file *file, const struct fake_proc *proc)
{
    add_process(proc, NEWCOMER, proc->mapping);
    put_slot(file, peek32(file, file->layout->proc_num), NEWCOMER, 4096);
}

/* A process with the dead one's pid starts, maps the file and takes the slot. */
static void retake(const struct region_file *file, const struct fake_proc *proc, uint64_t bytes,
                   int32_t host_pid)
{
    add_process(proc, DEAD, proc->mapping);
    put_slot(file, 0, DEAD, bytes);
    poke32(file, slot_at(file, 0, file->layout->slot_hostpid), host_pid);
}

static void retake_with_other_bytes(const struct region_file *file, const struct fake_proc *proc)
{
    retake(file, proc, 4096, 0);
}

static void retake_with_equal_bytes(const struct region_file *file, const struct fake_proc *proc)
{
    retake(file, proc, 1000, 77);
}

/* A region and a /proc of the test's own, and a scan that is going to stop there. */
static struct scan *begin_scan(uint32_t layout, struct region_file *file, struct fake_proc *proc,
                               int (*call)(struct scan *))
{
    static struct scan scan;
    region_file_make(file, layout);
    make_proc(proc, file);
    scan = (struct scan){.proc = proc, .call = call};
    NEED(hr_open(file->path, HR_WRITE, HR_LAYOUTS, 0, &scan.region, &call_error) >= 0);
    return &scan;
}

static void end_scan(struct scan *scan, struct region_file *file)
{
    hr_free(&scan->region);
    remove_proc(scan->proc);
    region_file_remove(file);
}

static void test_a_process_that_attaches_during_a_scan_is_not_reaped(void)
{
    for (uint32_t id = HR_V1_1; id < HR_LAYOUTS; id++) {
        struct region_file file;
        struct fake_proc proc;
        struct scan *scan = begin_scan(id, &file, &proc, call_reap);
        put_slot(&file, 0, DEAD, 1000);
        change_during(scan, &file, attach_newcomer);
        CHECK_EQ(scan->code, 1);
        CHECK_EQ(scan->reaped[0].pid, DEAD);
        CHECK_EQ(scan->reaped[0].what, HR_SLOT_DONE);
        CHECK_EQ(peek32(&file, file.layout->proc_num), 2);
        CHECK_EQ(bytes_in(&file, 0), 0);
        CHECK_EQ(pid_in(&file, 1), NEWCOMER);
        CHECK_EQ(bytes_in(&file, 1), 4096);
        end_scan(scan, &file);
    }
}

static void test_a_slot_that_is_taken_again_during_a_scan_is_not_reaped(void)
{
    for (uint32_t id = HR_V1_1; id < HR_LAYOUTS; id++) {
        for (int equal = 0; equal < 2; equal++) {
            struct region_file file;
            struct fake_proc proc;
            struct scan *scan = begin_scan(id, &file, &proc, call_reap);
            put_slot(&file, 0, DEAD, 1000);
            change_during(scan, &file, equal ? retake_with_equal_bytes : retake_with_other_bytes);
            CHECK_EQ(scan->code, 0);
            CHECK_EQ(pid_in(&file, 0), DEAD);
            CHECK_EQ(bytes_in(&file, 0), equal ? 1000 : 4096);
            end_scan(scan, &file);
        }
    }
}

/* libvgpu's waiter starts, takes the dead owner's lock away, and has it itself. */
static void change_owner(const struct region_file *file, const struct fake_proc *proc)
{
    add_process(proc, NEWCOMER, proc->mapping);
    take_as(file, NEWCOMER);
}

static void test_a_lock_that_changes_hands_during_a_scan_is_not_broken(void)
{
    for (uint32_t id = HR_V1_1; id < HR_LAYOUTS; id++) {
        struct region_file file;
        struct fake_proc proc;
        struct scan *scan = begin_scan(id, &file, &proc, call_recover);
        take_as(&file, DEAD);
        change_during(scan, &file, change_owner);
        CHECK_EQ(scan->code, HR_ENOTRECOVERABLE);
        CHECK_EQ(peek32(&file, file.layout->sem), 0);
        CHECK_EQ(peek64(&file, file.layout->owner_pid), NEWCOMER);
        take_as(&file, DEAD);
        end_scan(scan, &file);
    }
}

/* The same scenes without the change: the dead are found. */
static void test_a_scan_that_nothing_disturbs_finds_the_dead(void)
{
    for (uint32_t id = HR_V1_1; id < HR_LAYOUTS; id++) {
        struct region_file file;
        struct fake_proc proc;
        struct scan *scan = begin_scan(id, &file, &proc, call_recover);
        put_slot(&file, 0, DEAD, 1000);
        take_as(&file, DEAD);
        change_during(scan, &file, change_nothing);
        CHECK_EQ(scan->code, HR_RECOVERED_OWNER);
        check_free(&file);
        scan->call = call_reap;
        change_during(scan, &file, change_nothing);
        CHECK_EQ(scan->code, 1);
        CHECK_EQ(bytes_in(&file, 0), 0);
        end_scan(scan, &file);
    }
}

/* ---- Without proof ---------------------------------------------------------------------- */

/* Whoever else maps the file may have taken the lock and not signed yet, or be its owner. */
static void test_no_lock_is_broken_beside_a_live_process(void)
{
    static const uint64_t owners[] = {0, NEWCOMER};
    for (uint32_t id = HR_V1_1; id < HR_LAYOUTS; id++) {
        for (int i = 0; i < 2; i++) {
            struct region_file file;
            struct fake_proc proc;
            struct scan *scan = begin_scan(id, &file, &proc, call_recover);
            add_process(&proc, NEWCOMER, proc.mapping);
            take_as(&file, owners[i]);
            change_during(scan, &file, change_nothing);
            CHECK_EQ(scan->code, HR_ENOTRECOVERABLE);
            CHECK_EQ(peek32(&file, file.layout->sem), 0);
            CHECK_EQ(peek64(&file, file.layout->owner_pid), owners[i]);
            end_scan(scan, &file);
        }
    }
}

/* Whoever cannot be looked at may be the one that is about to sign, or the owner. */
static void test_no_lock_is_broken_beside_somebody_who_cannot_be_looked_at(void)
{
    static const uint64_t owners[] = {0, NEWCOMER, UINT64_C(1) << 40};
    for (int i = 0; i < 3; i++) {
        struct region_file file;
        struct fake_proc proc;
        char path[400];
        struct scan *scan = begin_scan(HR_V1_2, &file, &proc, call_recover);
        add_process(&proc, NEWCOMER, "");
        snprintf(path, sizeof path, "%s/%d/maps", proc.path, NEWCOMER);
        NEED(unlink(path) == 0 && mkdir(path, 0755) == 0); /* opens, and cannot be read */
        take_as(&file, owners[i]);
        change_during(scan, &file, change_nothing);
        CHECK_EQ(scan->code, HR_ENOTRECOVERABLE);
        CHECK_EQ(peek32(&file, file.layout->sem), 0);
        CHECK_EQ(peek64(&file, file.layout->owner_pid), owners[i]);
        end_scan(scan, &file);
    }
}

/*
 * Somebody posted, ended, and another one came and took the semaphore, all behind the
 * scan's back: it signs within a moment, and is not joined.
 */
static void test_a_newcomer_who_signs_after_the_scan_is_not_joined(void)
{
    static const uint64_t left[] = {0, UINT64_C(1) << 40};
    for (uint32_t id = HR_V1_1; id < HR_LAYOUTS; id++) {
        for (int i = 0; i < 2; i++) {
            struct region_file file;
            struct fake_proc proc;
            pthread_t thread;
            struct scan *scan = begin_scan(id, &file, &proc, call_recover);
            take_as(&file, left[i]);
            NEED(pthread_create(&thread, NULL, run_scan, scan) == 0);
            int fifo = open(proc.fifo, O_WRONLY | O_CLOEXEC);
            NEED(fifo >= 0);
            let_scan_pass(fifo);
            usleep(3000); /* far less than it is waited for, and more than the scan's rest takes */
            poke64(&file, file.layout->owner_pid, NEWCOMER);
            pthread_join(thread, NULL);
            CHECK_EQ(scan->code, HR_ENOTRECOVERABLE);
            CHECK_EQ(peek32(&file, file.layout->sem), 0);
            CHECK_EQ(peek64(&file, file.layout->owner_pid), NEWCOMER);
            end_scan(scan, &file);
        }
    }
}

/* With nobody else there, nobody can be about to sign. */
static void test_an_unsigned_lock_is_free_at_once_where_nobody_else_is(void)
{
    for (uint32_t id = HR_V1_1; id < HR_LAYOUTS; id++) {
        struct region_file file;
        struct fake_proc proc;
        struct scan *scan = begin_scan(id, &file, &proc, call_recover);
        take_as(&file, 0);
        change_during(scan, &file, change_nothing);
        CHECK_EQ(scan->code, HR_RECOVERED_OWNERLESS);
        check_free(&file);
        end_scan(scan, &file);
    }
}

/* ---- What was left half done ---------------------------------------------------------- */

/* A copy of our slot counts beside it, as a repair that was killed leaves it. */
static void test_accounting_while_standing_twice(void)
{
    for (uint32_t id = HR_V1_1; id < HR_LAYOUTS; id++) {
        struct region_file file;
        static struct hr_slot_result found[HR_SLOTS];
        region_file_make(&file, id);
        hr_region *region;
        NEED(hr_open(file.path, HR_WRITE, HR_LAYOUTS, 0, &region, &call_error) >= 0);
        put_slot(&file, 0, DEAD, 100);
        CHECK_EQ(hr_attach(region, ONE_SECOND, &call_error), HR_OK);
        CHECK_EQ(hr_charge(region, 0, HR_DATA, 1000, 0, ONE_SECOND, &call_error), HR_OK);
        memcpy(file.bytes + slot_at(&file, 0, 0), file.bytes + slot_at(&file, 1, 0),
               file.layout->slot_stride);
        CHECK_EQ(hr_charge(region, 0, HR_DATA, 500, 0, ONE_SECOND, &call_error), HR_OK);
        /* Nobody looks for it where processes remember their slots. */
        uint64_t copy = file.layout->slot_seqlock == HR_ABSENT ? 0 : 1000;
        CHECK_EQ(live_value(region, HR_VALUE_MEMORY_USED, 0), 1500 + copy);
        int code = hr_repair_slots(region, NULL, 0, ONE_SECOND, found, &call_error);
        CHECK_EQ(code, copy != 0);
        CHECK(code < 1 || found[0].what == HR_SLOT_UNKNOWN);
        CHECK_EQ(hr_release(region, 0, HR_DATA, 1500, ONE_SECOND, &call_error), HR_OK);
        CHECK_EQ(live_value(region, HR_VALUE_MEMORY_USED, 0), copy);
        CHECK_EQ(hr_detach(region, ONE_SECOND, &call_error), HR_OK);
        CHECK_EQ(live_value(region, HR_VALUE_MEMORY_USED, 0), 0);
        check_free(&file);
        hr_free(&region);
        region_file_remove(&file);
    }
}

/* ---- Recovery beside those who wait ----------------------------------------------------- */

static void *wait_for_lock(void *argument)
{
    hr_region *region = argument;
    int code = hr_lock(region, 20 * ONE_SECOND, &call_error);
    CHECK_EQ(code, HR_OK);
    if (code == HR_OK)
        CHECK_EQ(hr_unlock(region, &call_error), HR_OK);
    return NULL;
}

/* Others of this library wait for a dead owner's lock, for long; it is recovered all the same. */
static void test_waiters_do_not_keep_recovery_out(void)
{
    enum { WAITERS = 3 };
    for (uint32_t id = HR_V1_1; id < HR_LAYOUTS; id++) {
        struct region_file file;
        hr_region *waiting[WAITERS], *doctor;
        pthread_t threads[WAITERS];
        region_file_make(&file, id);
        take_as(&file, DEAD);
        for (int i = 0; i < WAITERS; i++) {
            NEED(hr_open(file.path, HR_WRITE, HR_LAYOUTS, 0, &waiting[i], &call_error) >= 0);
            NEED(pthread_create(&threads[i], NULL, wait_for_lock, waiting[i]) == 0);
        }
        usleep(200000); /* all of them wait, whichever wins below */
        NEED(hr_open(file.path, HR_WRITE, HR_LAYOUTS, 0, &doctor, &call_error) >= 0);
        int code = recover_lock(doctor, NULL, 0);
        CHECK(code == HR_RECOVERED_OWNER || code == 0);
        if (code < 0) {
            poke64(&file, file.layout->owner_pid, 0);
            poke64(&file, file.layout->sem, 1);
        }
        for (int i = 0; i < WAITERS; i++)
            pthread_join(threads[i], NULL);
        check_free(&file);
        for (int i = 0; i < WAITERS; i++)
            hr_free(&waiting[i]);
        hr_free(&doctor);
        region_file_remove(&file);
    }
}

int main(void)
{
    signal(SIGPIPE, SIG_IGN);
    RUN(test_a_scan_that_nothing_disturbs_finds_the_dead);
    RUN(test_a_process_that_attaches_during_a_scan_is_not_reaped);
    RUN(test_a_slot_that_is_taken_again_during_a_scan_is_not_reaped);
    RUN(test_a_lock_that_changes_hands_during_a_scan_is_not_broken);
    RUN(test_no_lock_is_broken_beside_a_live_process);
    RUN(test_no_lock_is_broken_beside_somebody_who_cannot_be_looked_at);
    RUN(test_a_newcomer_who_signs_after_the_scan_is_not_joined);
    RUN(test_an_unsigned_lock_is_free_at_once_where_nobody_else_is);
    RUN(test_accounting_while_standing_twice);
    RUN(test_waiters_do_not_keep_recovery_out);
    return check_report("test_lock_races");
}
