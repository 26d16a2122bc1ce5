/* Text is the same in pieces of any size, never beyond its buffer, and reads back as what it was.
 */
#include <math.h>

#include "check.h"
#include "samples.h"

enum { LABELS = 40 };

static uint64_t random_state = 88172645463325252u;

static uint64_t next_random(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    return random_state ^= random_state << 17;
}

/* In a buffer that is exactly as large as it is said to be, for the sanitizer. */
static size_t written(const struct hr_samples *samples, uint32_t count, size_t piece, char *whole,
                      size_t room)
{
    struct hr_place_in_text place = {0};
    size_t length = 0;
    while (place.samples < count) {
        char *out = malloc(piece);
        NEED(out != NULL);
        const size_t bytes = hr_write_samples(samples, count, &place, out, piece);
        NEED(bytes <= piece && length + bytes <= room);
        NEED(bytes > 0 || place.samples == count);
        memcpy(whole + length, out, bytes);
        length += bytes;
        free(out);
    }
    return length;
}

static void test_pieces(void)
{
    static const char labels[] = "abcdefghijklmnopqrstuvwxyz0123456789-+*/";
    for (int round = 0; round < 2000 / SHARE_OF_WORK; round++) {
        uint64_t cells[LABELS];
        uint32_t ends[LABELS], rows[LABELS];
        for (uint32_t i = 0; i < LABELS; i++) {
            cells[i] = next_random() >> (next_random() % 64);
            ends[i] = i + 1;
            rows[i] = next_random() % 8 == 0 ? HR_NO_ROW : (uint32_t)(next_random() % (LABELS + 2));
        }
        struct hr_samples samples[HR_WRITE_ONE + 1];
        for (uint32_t as = 0; as <= HR_WRITE_ONE; as++) {
            samples[as] = (struct hr_samples){
                .before = as % 2 == 0 ? "# one\n" : "# other\n",
                .head = "name{",
                .tail = "} ",
                .labels = labels,
                .ends = ends,
                .rows = next_random() % 2 == 0 ? NULL : rows,
                .cells = cells,
                .before_bytes = as % 2 == 0 ? 6 : 8,
                .head_bytes = 5,
                .tail_bytes = 2,
                .count = (uint32_t)(next_random() % (LABELS + 1)),
                .cell_count = LABELS,
                .write_as = as,
                .now = next_random() >> 20,
            };
        }
        static char whole[1 << 16], pieces[1 << 16];
        const uint32_t count = HR_WRITE_ONE + 1;
        const size_t length = written(samples, count, sizeof whole, whole, sizeof whole);
        const size_t piece = 64 + next_random() % 200;
        CHECK_EQ(written(samples, count, piece, pieces, sizeof pieces), length);
        CHECK(memcmp(whole, pieces, length) == 0);
    }
}

static void test_a_line_without_room_is_not_begun(void)
{
    const uint64_t cell = UINT64_MAX;
    const uint32_t end = 3;
    const struct hr_samples samples = {.before = "",
                                       .head = "n{",
                                       .tail = "} ",
                                       .labels = "abc",
                                       .ends = &end,
                                       .cells = &cell,
                                       .head_bytes = 2,
                                       .tail_bytes = 2,
                                       .count = 1,
                                       .cell_count = 1};
    const char line[] = "n{abc} 18446744073709551615\n";
    for (size_t room = 0; room <= sizeof line; room++) {
        struct hr_place_in_text place = {0};
        char *out = malloc(room + 1);
        NEED(out != NULL);
        const size_t bytes = hr_write_samples(&samples, 1, &place, out, room);
        CHECK_EQ(bytes, room < sizeof line - 1 ? 0 : sizeof line - 1);
        CHECK_EQ(place.samples, bytes != 0);
        CHECK(memcmp(out, line, bytes) == 0);
        free(out);
    }
}

static void test_doubles_read_back(void)
{
    for (int round = 0; round < 200000 / SHARE_OF_WORK; round++) {
        union {
            uint64_t bits;
            double value;
        } cell = {next_random()};
        if (round % 4 == 0)
            cell.value = (double)(int64_t)next_random();
        const uint32_t end = 0;
        const struct hr_samples samples = {.before = "",
                                           .head = "",
                                           .tail = "",
                                           .labels = "",
                                           .ends = &end,
                                           .cells = &cell,
                                           .count = 1,
                                           .cell_count = 1,
                                           .write_as = HR_WRITE_DOUBLE};
        struct hr_place_in_text place = {0};
        char out[64];
        const size_t bytes = hr_write_samples(&samples, 1, &place, out, sizeof out - 1);
        NEED(bytes > 1 && bytes < sizeof out);
        out[bytes] = '\0';
        const double back = strtod(out, NULL);
        CHECK(isnan(cell.value) ? strcmp(out, "NaN\n") == 0 : back == cell.value);
    }
}

static void test_sums(void)
{
    /* The second process is not chosen; those after it belong nowhere. */
    const uint64_t region[] = {0, 0, 1, 9, 0, 1}, first_usage[] = {0, 2, 4, 0, 7, UINT64_MAX};
    const uint64_t first_device[] = {0, 2}, device_rows[] = {2, 1};
    const unsigned char chosen[] = {1, 0, 1, 1, 1, 1};
    uint64_t usages[] = {1, 2, 30, 40, UINT64_MAX - 1, 5, 6, 7}, sums[3] = {9, 9, 9};
    const struct hr_slot_columns columns = {
        .region = region,
        .first_usage = first_usage,
        .first_device = first_device,
        .device_rows = device_rows,
        .processes = 6,
        .regions = 2,
        .usages = 8,
        .devices = 3,
    };
    hr_sum_slots(&columns, chosen, usages, sums);
    CHECK_EQ(sums[0], 1);
    CHECK_EQ(sums[1], 2);
    CHECK_EQ(sums[2], UINT64_MAX - 1);
    /* Sums wrap, as libvgpu adds. */
    const uint64_t twice[] = {1, 1}, both[] = {4, 4};
    const unsigned char all[] = {1, 1};
    struct hr_slot_columns two = columns;
    two.region = twice;
    two.first_usage = both;
    two.processes = 2;
    hr_sum_slots(&two, all, usages, sums);
    CHECK_EQ(sums[2], 2 * (UINT64_MAX - 1));
}

static void test_sums_of_figures(void)
{
    /* The third pair has no figure, that of the fourth is not known, the last has no device. */
    const uint32_t devices[] = {0, 0, 1, 2, 3, 3, 4}, rows[] = {0, 1, HR_NO_ROW, 2, 3, 3, 0};
    const int64_t figures[] = {5, 7, -1, INT64_MAX};
    uint64_t sums[4] = {0, 0, 0, 1};
    uint32_t users[4] = {0}, known[4] = {0, 1, 2, 3};
    hr_sum_figures(devices, rows, 7, figures, 4, sums, users, known, 4);
    CHECK_EQ(sums[0], 12);
    CHECK_EQ(sums[1], 0);
    CHECK_EQ(sums[2], 0);
    CHECK_EQ(sums[3], UINT64_MAX);
    const uint32_t wanted_users[] = {2, 1, 1, 2}, wanted[] = {0, HR_NO_ROW, HR_NO_ROW, 3};
    for (int device = 0; device < 4; device++) {
        CHECK_EQ(users[device], wanted_users[device]);
        CHECK_EQ(known[device], wanted[device]);
    }
}

int main(void)
{
    RUN(test_pieces);
    RUN(test_a_line_without_room_is_not_begun);
    RUN(test_doubles_read_back);
    RUN(test_sums);
    RUN(test_sums_of_figures);
    return check_report("test_samples");
}
