#include "samples.h"

#include <float.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base.h"

/* The longest number, "-1.2345678901234567e-308", and the end of its line. */
#define NUMBER_BYTES 32

static char *put_unsigned(char *to, uint64_t value)
{
    char digits[20];
    char *first = digits + sizeof digits;
    do {
        *--first = (char)('0' + value % 10);
        value /= 10;
    } while (value != 0);
    const size_t length = (size_t)(digits + sizeof digits - first);
    memcpy(to, first, length);
    return to + length;
}

static char *put_signed(char *to, int64_t value)
{
    if (value >= 0)
        return put_unsigned(to, (uint64_t)value);
    *to++ = '-';
    return put_unsigned(to, -(uint64_t)value);
}

static char *put_ratio(char *to, uint64_t percent)
{
    to = put_unsigned(to, percent / 100);
    const unsigned rest = (unsigned)(percent % 100);
    if (rest != 0) {
        *to++ = '.';
        *to++ = (char)('0' + rest / 10);
        if (rest % 10 != 0)
            *to++ = (char)('0' + rest % 10);
    }
    return to;
}

static char *put_text(char *to, const char *text, size_t length)
{
    memcpy(to, text, length);
    return to + length;
}

static char *put_double(char *to, double value)
{
    if (isnan(value))
        return put_text(to, "NaN", 3);
    if (isinf(value))
        return value > 0 ? put_text(to, "+Inf", 4) : put_text(to, "-Inf", 4);
    if (fabs(value) < 0x1p53 && value == (double)(int64_t)value)
        return put_signed(to, (int64_t)value);
    /* Up to 15 digits survive the way through a double, so fewer are never shorter. */
    int length = 0;
    for (int digits = fabs(value) < DBL_MIN ? 1 : 15; digits <= 17; digits++) {
        length = snprintf(to, NUMBER_BYTES, "%.*g", digits, value);
        if (strtod(to, NULL) == value)
            break;
    }
    return to + length;
}

/* Writes the number of a cell; returns NULL where there is no sample. */
static char *put_number(char *to, const struct hr_samples *samples, uint32_t row)
{
    const enum hr_write_as as = (enum hr_write_as)samples->write_as;
    if (as == HR_WRITE_ONE) {
        *to++ = '1';
        return to;
    }
    if (row >= samples->cell_count)
        return NULL;
    if (as == HR_WRITE_DOUBLE)
        return put_double(to, ((const double *)samples->cells)[row]);
    const uint64_t cell = ((const uint64_t *)samples->cells)[row];
    switch (as) {
    case HR_WRITE_UNSIGNED:
        return put_unsigned(to, cell);
    case HR_WRITE_SIGNED:
        return put_signed(to, (int64_t)cell);
    case HR_WRITE_RATIO:
        return put_ratio(to, cell);
    case HR_WRITE_SM_LIMIT:
        return cell > 0 && cell < 100 ? put_ratio(to, cell) : NULL;
    case HR_WRITE_SINCE:
        return cell == 0 ? NULL : put_unsigned(to, cell < samples->now ? samples->now - cell : 0);
    case HR_WRITE_NEGATIVE:
        *to++ = (int64_t)cell < 0 ? '1' : '0';
        return to;
    default:
        return NULL;
    }
}

/* Writes what has room of one family; returns whether that is all. */
static int write_family(const struct hr_samples *samples, struct hr_place_in_text *place,
                        char **out, const char *end)
{
    char *to = *out;
    for (; place->row < samples->count; place->row++) {
        const uint32_t at = place->row;
        const uint32_t row = samples->rows == NULL ? at : samples->rows[at];
        char number[NUMBER_BYTES];
        const char *number_end = row == HR_NO_ROW ? NULL : put_number(number, samples, row);
        if (number_end == NULL)
            continue;
        const size_t number_bytes = (size_t)(number_end - number);
        const uint32_t start = at == 0 ? 0 : samples->ends[at - 1];
        const size_t label_bytes = samples->ends[at] - start;
        const size_t before_bytes = place->begun == samples->before ? 0 : samples->before_bytes;
        const size_t needed = before_bytes + samples->head_bytes + label_bytes +
                              samples->tail_bytes + number_bytes + 1;
        if (needed > (size_t)(end - to)) {
            *out = to;
            return 0;
        }
        to = put_text(to, samples->before, before_bytes);
        to = put_text(to, samples->head, samples->head_bytes);
        to = put_text(to, samples->labels + start, label_bytes);
        to = put_text(to, samples->tail, samples->tail_bytes);
        to = put_text(to, number, number_bytes);
        *to++ = '\n';
        place->begun = samples->before;
    }
    *out = to;
    return 1;
}

size_t hr_write_samples(const struct hr_samples *samples, uint32_t count,
                        struct hr_place_in_text *place, char *out, size_t room)
{
    /* A program may have set a locale with a decimal comma. */
    const locale_t plain = newlocale(LC_NUMERIC_MASK, "C", (locale_t)0);
    const locale_t before = plain == (locale_t)0 ? plain : uselocale(plain);
    char *to = out;
    while (place->samples < count &&
           write_family(&samples[place->samples], place, &to, out + room)) {
        place->samples++;
        place->row = 0;
    }
    if (plain != (locale_t)0) {
        uselocale(before);
        freelocale(plain);
    }
    return (size_t)(to - out);
}

void hr_sum_slots(const struct hr_slot_columns *columns, const unsigned char *chosen,
                  const uint64_t *usages, uint64_t *sums)
{
    memset(sums, 0, columns->devices * sizeof *sums);
    for (uint32_t i = 0; i < columns->processes; i++) {
        const uint64_t region = columns->region[i];
        if (chosen[i] == 0 || region >= columns->regions)
            continue;
        const uint64_t device = columns->first_device[region], usage = columns->first_usage[i];
        const uint64_t count = columns->device_rows[region];
        if (count > columns->devices || device > columns->devices - count ||
            count > columns->usages || usage > columns->usages - count)
            continue;
        for (uint64_t j = 0; j < count; j++)
            sums[device + j] += usages[usage + j];
    }
}

void hr_sum_figures(const uint32_t *devices, const uint32_t *rows, uint32_t count,
                    const int64_t *figures, uint32_t figure_count, uint64_t *sums, uint32_t *users,
                    uint32_t *known, uint32_t device_count)
{
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t device = devices[i], row = rows[i];
        if (device >= device_count)
            continue;
        users[device]++;
        if (row >= figure_count || figures[row] < 0)
            known[device] = HR_NO_ROW;
        else
            sums[device] += (uint64_t)figures[row];
    }
}
