/* The scene of the crash test, and what is put on it before and after a death. */
#define _GNU_SOURCE
#include "crash.h"

#include <errno.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

uint64_t below(uint64_t *state, uint64_t bound)
{
    return next_random(state) % bound;
}

bool scene_fail(struct scene *scene, const char *format, ...)
{
    if (scene->failure[0] == '\0') {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(scene->failure, sizeof scene->failure, format, arguments);
        va_end(arguments);
    }
    return false;
}

bool scene_has_seqlock(const struct scene *scene)
{
    return scene->layout->slot_seqlock != HR_ABSENT;
}

void scene_start(struct scene *scene, uint32_t layout, bool crowded)
{
    region_file_make(&scene->file, layout);
    scene->layout = scene->file.layout;
    scene->crowded = crowded;
    scene->failure[0] = '\0';
    memset(scene->shared, 0, sizeof *scene->shared);
    atomic_store(&scene->shared->count, LIVE);
    NEED(hr_open(scene->file.path, HR_WRITE, HR_LAYOUTS, 0, &scene->doctor, &call_error) ==
         (int)layout);
    for (uint32_t i = 0; crowded && i < SURVIVORS; i++)
        start_live(scene, i);
}

/* A process of libvgpu at work in its slot, as far as anybody can see. */
static void start_working(struct scene *scene, uint32_t slot)
{
    uint8_t *seqlock = scene->file.bytes + slot_at(&scene->file, slot, scene->layout->slot_seqlock);
    scene->working = fork();
    NEED(scene->working >= 0);
    while (scene->working == 0) {
        atomic_fetch_add((_Atomic uint64_t *)(void *)seqlock, 2);
        nap_us(1000);
    }
}

void stop_working(struct scene *scene)
{
    if (scene->working <= 0)
        return;
    kill(scene->working, SIGKILL);
    waitpid(scene->working, NULL, 0);
    scene->working = 0;
}

void scene_stop(struct scene *scene)
{
    stop_working(scene);
    for (uint32_t i = 0; i < LIVE; i++)
        stop_live(scene, i);
    hr_free(&scene->doctor);
    scene->doctor = NULL;
    region_file_remove(&scene->file);
}

/* Two waiters that forced the same lock: the semaphore stands at 2. */
bool prepare_value(struct scene *scene)
{
    if (!pause_survivors(scene))
        return false;
    poke64(&scene->file, scene->layout->sem, 2);
    return true;
}

/* A name behind the last slot would have a newcomer look for an emptied one. */
static void clear_end(const struct scene *scene)
{
    const struct region_file *file = &scene->file;
    uint32_t count = peek32(file, scene->layout->proc_num);
    poke32(file, slot_at(file, count, scene->layout->slot_pid), 0);
}

bool keep_survivors(struct scene *scene)
{
    atomic_store(&scene->shared->stay, 1);
    for (uint32_t i = 0; i < SURVIVORS; i++) {
        while (!atomic_load(&scene->shared->ledgers[i].attached))
            nap_us(50);
    }
    clear_end(scene);
    return true;
}

bool prepare_still_guest(struct scene *scene, bool behind_corpse)
{
    if (behind_corpse && make_corpse(scene) == NULL)
        return false;
    keep_survivors(scene);
    start_live(scene, GUEST);
    return pause_one(scene, GUEST);
}

static bool find_slot(struct scene *scene, const struct ledger *ledger, uint32_t *index)
{
    const struct region_file *file = &scene->file;
    uint32_t count = peek32(file, scene->layout->proc_num);
    for (*index = 0; *index < count; (*index)++) {
        if ((int32_t)peek32(file, slot_at(file, *index, scene->layout->slot_pid)) ==
            atomic_load(&ledger->pid))
            return true;
    }
    return scene_fail(scene, "%d has no slot", atomic_load(&ledger->pid));
}

/*
 * What libvgpu does when it removes two dead slots at once: the guest's slot is
 * copied over the corpse's, and the guest, which does not know, goes on writing in
 * its own, now above proc_num.
 */
bool prepare_orphan(struct scene *scene, bool guest_notices)
{
    const struct region_file *file = &scene->file;
    const struct hr_layout *layout = scene->layout;
    struct ledger *guest = &scene->shared->ledgers[GUEST], *corpse;
    uint32_t hole, last;
    if (!pause_survivors(scene) || (corpse = make_corpse(scene)) == NULL)
        return false;
    clear_end(scene);
    start_live(scene, GUEST);
    if (!pause_survivors(scene) || !find_slot(scene, corpse, &hole) ||
        !find_slot(scene, guest, &last))
        return false;
    if (last + 1 != peek32(file, layout->proc_num))
        return scene_fail(scene, "the guest's slot is not the last one");
    memcpy(file->bytes + slot_at(file, hole, 0), file->bytes + slot_at(file, last, 0),
           layout->slot_stride);
    poke32(file, layout->proc_num, last);
    atomic_store(&corpse->pid, 0);
    atomic_store(&corpse->attached, 0);
    atomic_store(&guest->is_orphan, 1);
    start_working(scene, last);
    /* A guest of ours notices as soon as it goes on, a libvgpu never does. */
    if (guest_notices || below(&scene->random, 2) == 0)
        return true;
    const size_t used = slot_at(file, last, layout->slot_used);
    poke64(file, used + 8, peek64(file, used + 8) + 4096);
    poke64(file, used + 32, peek64(file, used + 32) + 4096);
    atomic_fetch_add(&guest->held[0][HR_MODULE], 4096);
    return true;
}

void remove_emptied_end(struct scene *scene)
{
    const struct region_file *file = &scene->file;
    uint32_t count = peek32(file, scene->layout->proc_num);
    for (; count > 0; count--) {
        const size_t at = slot_at(file, count - 1, scene->layout->slot_pid);
        for (uint32_t i = 0; i < LIVE; i++) {
            if ((int32_t)peek32(file, at) == atomic_load(&scene->shared->ledgers[i].pid))
                return;
        }
        poke32(file, scene->layout->proc_num, count - 1);
        poke32(file, at, 0);
    }
}

/* libvgpu's waiter: no such process, so compare and swap to 0, and who wins posts. */
void libvgpu_takes_lock_away(struct scene *scene)
{
    const struct region_file *file = &scene->file;
    uint8_t *sem = file->bytes + scene->layout->sem;
    uint64_t owner = peek64(file, scene->layout->owner_pid);
    const pid_t pid = (int32_t)owner; /* as libvgpu has it */
    if (pid <= 0 || peek32(file, scene->layout->sem) != 0 || kill(pid, 0) == 0 || errno != ESRCH)
        return;
    if (!atomic_compare_exchange_strong(
            (_Atomic uint64_t *)(void *)(file->bytes + scene->layout->owner_pid), &owner, 0))
        return;
    atomic_fetch_add((_Atomic uint64_t *)(void *)sem, 1);
    syscall(SYS_futex, sem, FUTEX_WAKE, 1, NULL, NULL, 0);
}
