#define _GNU_SOURCE
#include "maps.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "testpoint.h"

/* ---- Budgets ---------------------------------------------------------------------- */

#define WALL_PER_CPU 20

struct hr_budget hr_budget_of_time(uint64_t ns)
{
    return (struct hr_budget){.deadline_ns = hr_deadline_ns(ns), .cpu_end_ns = UINT64_MAX};
}

struct hr_budget hr_budget_of_cpu(uint64_t ns)
{
    uint64_t longest, used = hr_clock_ns(CLOCK_THREAD_CPUTIME_ID);
    if (__builtin_mul_overflow(ns, WALL_PER_CPU, &longest))
        longest = UINT64_MAX;
    return (struct hr_budget){.deadline_ns = hr_deadline_ns(longest),
                              .cpu_end_ns = hr_add_saturating(used, ns)};
}

bool hr_is_spent(const struct hr_budget *budget)
{
#ifdef HR_TESTPOINTS
    if (hr_testpoint_looks_left >= 0)
        return hr_testpoint_looks_left == 0 || --hr_testpoint_looks_left == 0;
#endif
    return hr_is_past(budget->deadline_ns) ||
           (budget->cpu_end_ns != UINT64_MAX &&
            hr_clock_ns(CLOCK_THREAD_CPUTIME_ID) >= budget->cpu_end_ns);
}

/* ---- Lines ------------------------------------------------------------------------ */

#define BETWEEN_LOOKS_AT_THE_CLOCK 64

bool hr_open_lines(struct hr_lines *lines, int directory, const char *name,
                   const struct hr_budget *budget)
{
    *lines = (struct hr_lines){.budget = budget};
    if (directory == AT_FDCWD) { /* this process's own files */
        lines->file = fopen(name, "re");
        return lines->file != NULL;
    }
    int fd = openat(directory, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd >= 0 && (lines->file = fdopen(fd, "re")) == NULL)
        close(fd);
    return lines->file != NULL;
}

bool hr_next_line(struct hr_lines *lines)
{
    lines->cut_short = lines->budget != NULL && lines->count % BETWEEN_LOOKS_AT_THE_CLOCK == 0 &&
                       hr_is_spent(lines->budget);
    lines->count++;
    return !lines->cut_short && getline(&lines->text, &lines->room, lines->file) > 0;
}

void hr_close_lines(struct hr_lines *lines)
{
    free(lines->text);
    if (lines->file != NULL)
        fclose(lines->file);
}

/* ---- Mappings --------------------------------------------------------------------- */

bool hr_parse_mapping(const char *line, struct hr_mapping *out)
{
    struct hr_mapped_file *file = &out->file;
    uint64_t end;
    if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %*s %*x %x:%x %" SCNu64, &out->start, &end,
               &file->major_number, &file->minor_number, &file->inode) != 5)
        return false;
    file->bytes = end - out->start;
    return true;
}

bool hr_parse_written(const char *line, struct hr_mapping *out)
{
    const char *permissions = strchr(line, ' ');
    return permissions != NULL && strnlen(permissions, 5) == 5 && permissions[2] == 'w' &&
           permissions[4] == 's' && hr_parse_mapping(line, out);
}

/* As Linux 6.11 defines it; headers here may be older.  What comes behind is not asked for. */
struct procmap_query {
    uint64_t size, query_flags, query_addr;
    uint64_t vma_start, vma_end, vma_flags, vma_page_size, vma_offset, inode;
    uint32_t dev_major, dev_minor, vma_name_size, build_id_size;
    uint64_t vma_name_addr, build_id_addr;
};
_Static_assert(sizeof(struct procmap_query) == 104, "the kernel's");
#define PROCMAP_QUERY _IOWR('f', 17, struct procmap_query)

enum { WRITABLE = 0x02, SHARED = 0x08, COVERING_OR_NEXT = 0x10, FILE_BACKED = 0x20 };

/* HR_OK, or HR_ENOTFOUND with errno: there is no further one, or the kernel does not answer. */
static int ask(struct hr_written_maps *maps, struct hr_mapping *out)
{
    struct procmap_query query = {.size = sizeof query,
                                  .query_flags = WRITABLE | SHARED | COVERING_OR_NEXT | FILE_BACKED,
                                  .query_addr = maps->next};
    if (ioctl(fileno(maps->lines.file), PROCMAP_QUERY, &query) != 0)
        return HR_ENOTFOUND;
    maps->next = query.vma_end;
    out->start = query.vma_start;
    out->file = (struct hr_mapped_file){.major_number = query.dev_major,
                                        .minor_number = query.dev_minor,
                                        .inode = query.inode,
                                        .bytes = query.vma_end - query.vma_start};
    return HR_OK;
}

bool hr_open_written(struct hr_written_maps *maps, int directory, const char *name,
                     const struct hr_budget *budget)
{
    *maps = (struct hr_written_maps){.is_asked = true};
    return hr_open_lines(&maps->lines, directory, name, budget);
}

/* Whether there was an answer: also that there is nothing more. */
static bool next_asked(struct hr_written_maps *maps, struct hr_mapping *out, bool *found)
{
    struct hr_lines *lines = &maps->lines;
    bool is_first = maps->next == 0;
    *found = false;
    maps->cut_short = lines->budget != NULL && lines->count++ % BETWEEN_LOOKS_AT_THE_CLOCK == 0 &&
                      hr_is_spent(lines->budget);
    if (maps->cut_short)
        return true;
    *found = ask(maps, out) == HR_OK;
    if (*found || errno == ENOENT)
        return true;
    if (errno == ESRCH) { /* it has given up its memory, before or meanwhile */
        maps->is_empty = is_first;
        maps->error = is_first ? 0 : ESRCH;
        return true;
    }
    maps->error = is_first ? 0 : errno;
    return !is_first;
}

static bool next_read(struct hr_written_maps *maps, struct hr_mapping *out)
{
    struct hr_lines *lines = &maps->lines;
    maps->is_empty = lines->count == 0;
    while (hr_next_line(lines)) {
        maps->is_empty = false;
        if (hr_parse_written(lines->text, out))
            return true;
    }
    maps->cut_short = lines->cut_short;
    if (!maps->cut_short && !feof(lines->file))
        maps->error = errno;
    maps->is_empty = maps->is_empty && !maps->cut_short && maps->error == 0;
    return false;
}

bool hr_next_written(struct hr_written_maps *maps, struct hr_mapping *out)
{
    bool found;
    if (maps->is_asked && next_asked(maps, out, &found))
        return found;
    if (maps->is_asked) {
        maps->is_asked = false;
        maps->lines.count = 0;
    }
    return next_read(maps, out);
}

void hr_close_written(struct hr_written_maps *maps)
{
    hr_close_lines(&maps->lines);
}
