#include "arrow.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/*
 * One copy of the table. Streams, schemas, arrays and each of their children, which a consumer
 * may move away and release on their own, hold one reference each.
 */
struct table {
    _Atomic uint32_t references;
    uint32_t count;
    int64_t rows;
    bool is_taken; /* the stream has given its one batch */
    /* Arrow has these pointers not const, but nobody writes through them. */
    struct hr_arrow_column *columns;
};

static void drop_reference(struct table *table)
{
    /* Release, so that others' uses come before; acquire, so that the free comes after. */
    if (atomic_fetch_sub_explicit(&table->references, 1, memory_order_acq_rel) > 1)
        return;
    for (uint32_t i = 0; i < table->count; i++) {
        free((void *)table->columns[i].name);
        free((void *)table->columns[i].format);
        for (int part = 0; part < HR_ARROW_BUFFERS; part++)
            free((void *)table->columns[i].buffers[part]);
    }
    free(table->columns);
    free(table);
}

static void take_references(struct table *table, uint32_t count)
{
    atomic_fetch_add_explicit(&table->references, count, memory_order_relaxed);
}

static bool copy_column(struct hr_arrow_column *to, const struct hr_arrow_column *from)
{
    to->null_count = from->null_count;
    to->name = strdup(from->name);
    to->format = strdup(from->format);
    if (!to->name || !to->format)
        return false;
    for (int part = 0; part < HR_ARROW_BUFFERS; part++) {
        if (!from->buffers[part])
            continue;
        /* Arrow wants a pointer also where there is nothing. */
        void *copy = malloc(from->bytes[part] ? from->bytes[part] : 1);
        if (!copy)
            return false;
        memcpy(copy, from->buffers[part], from->bytes[part]);
        to->buffers[part] = copy;
        to->bytes[part] = from->bytes[part];
    }
    return true;
}

static struct table *copy_table(const struct hr_arrow_column *columns, uint32_t count, int64_t rows)
{
    struct table *table = calloc(1, sizeof(*table));
    if (!table)
        return NULL;
    table->references = 1;
    table->rows = rows;
    table->columns = calloc(count ? count : 1, sizeof(*columns));
    bool copied = table->columns != NULL;
    for (uint32_t i = 0; copied && i < count; i++) {
        table->count = i + 1;
        copied = copy_column(&table->columns[i], &columns[i]);
    }
    if (copied)
        return table;
    drop_reference(table);
    return NULL;
}

/* The structs of all children, and the list of pointers to them: one piece of memory. */
static void *new_children(uint32_t count, size_t size)
{
    char *children = calloc(count ? count : 1, sizeof(void *) + size);
    for (uint32_t i = 0; children && i < count; i++)
        ((void **)children)[i] = children + count * sizeof(void *) + i * size;
    return children;
}

static void release_schema(struct ArrowSchema *schema)
{
    for (int64_t i = 0; i < schema->n_children; i++)
        if (schema->children[i]->release)
            schema->children[i]->release(schema->children[i]);
    free(schema->children);
    schema->release = NULL;
    drop_reference(schema->private_data);
}

static int get_schema(struct ArrowArrayStream *stream, struct ArrowSchema *out)
{
    struct table *table = stream->private_data;
    struct ArrowSchema **children = new_children(table->count, sizeof(**children));
    if (!children)
        return ENOMEM;
    take_references(table, table->count + 1);
    *out = (struct ArrowSchema){
        .format = "+s",
        .name = "",
        .n_children = table->count,
        .children = children,
        .release = release_schema,
        .private_data = table,
    };
    for (uint32_t i = 0; i < table->count; i++)
        *children[i] = (struct ArrowSchema){
            .format = table->columns[i].format,
            .name = table->columns[i].name,
            .flags = ARROW_FLAG_NULLABLE,
            .release = release_schema,
            .private_data = table,
        };
    return 0;
}

static void release_array(struct ArrowArray *array)
{
    for (int64_t i = 0; i < array->n_children; i++)
        if (array->children[i]->release)
            array->children[i]->release(array->children[i]);
    free(array->children);
    array->release = NULL;
    drop_reference(array->private_data);
}

static int get_next(struct ArrowArrayStream *stream, struct ArrowArray *out)
{
    /* A struct of rows has no validity of its own. */
    static const void *no_buffers[1];
    struct table *table = stream->private_data;

    memset(out, 0, sizeof(*out));
    if (table->is_taken)
        return 0; /* release NULL: the end of the stream */
    struct ArrowArray **children = new_children(table->count, sizeof(**children));
    if (!children)
        return ENOMEM;
    table->is_taken = true;
    take_references(table, table->count + 1);
    *out = (struct ArrowArray){
        .length = table->rows,
        .n_buffers = 1,
        .n_children = table->count,
        .buffers = no_buffers,
        .children = children,
        .release = release_array,
        .private_data = table,
    };
    for (uint32_t i = 0; i < table->count; i++)
        *children[i] = (struct ArrowArray){
            .length = table->rows,
            .null_count = table->columns[i].null_count,
            .n_buffers = table->columns[i].buffers[2] ? 3 : 2,
            .buffers = table->columns[i].buffers,
            .release = release_array,
            .private_data = table,
        };
    return 0;
}

static const char *get_last_error(struct ArrowArrayStream *stream)
{
    (void)stream;
    return NULL; /* the number says it: ENOMEM */
}

static void release_stream(struct ArrowArrayStream *stream)
{
    stream->release = NULL;
    drop_reference(stream->private_data);
}

struct ArrowArrayStream *hr_arrow_stream(const struct hr_arrow_column *columns, uint32_t count,
                                         int64_t rows)
{
    struct ArrowArrayStream *stream = malloc(sizeof(*stream));
    struct table *table = stream ? copy_table(columns, count, rows) : NULL;
    if (!table) {
        free(stream);
        return NULL;
    }
    *stream =
        (struct ArrowArrayStream){get_schema, get_next, get_last_error, release_stream, table};
    return stream;
}

void hr_free_arrow_stream(struct ArrowArrayStream *stream)
{
    if (stream->release)
        stream->release(stream);
    free(stream);
}
