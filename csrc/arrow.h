/*
 * A table as an Arrow stream: the C data interface, by which pyarrow, polars, DuckDB and
 * others take tables from each other without knowing each other.
 *
 * Everything is copied when the stream is made. What a consumer releases later, on whatever
 * thread and however late, needs nothing but free().
 */
#ifndef HR_ARROW_H
#define HR_ARROW_H

#include <stdint.h>

/* The three structs of the specification, under the guard that it asks for. */
#ifndef ARROW_C_DATA_INTERFACE
#define ARROW_C_DATA_INTERFACE

#define ARROW_FLAG_NULLABLE 2

struct ArrowSchema {
    const char *format;
    const char *name;
    const char *metadata;
    int64_t flags;
    int64_t n_children;
    struct ArrowSchema **children;
    struct ArrowSchema *dictionary;
    void (*release)(struct ArrowSchema *);
    void *private_data;
};

struct ArrowArray {
    int64_t length;
    int64_t null_count;
    int64_t offset;
    int64_t n_buffers;
    int64_t n_children;
    const void **buffers;
    struct ArrowArray **children;
    struct ArrowArray *dictionary;
    void (*release)(struct ArrowArray *);
    void *private_data;
};

#endif

#ifndef ARROW_C_STREAM_INTERFACE
#define ARROW_C_STREAM_INTERFACE

struct ArrowArrayStream {
    int (*get_schema)(struct ArrowArrayStream *, struct ArrowSchema *out);
    int (*get_next)(struct ArrowArrayStream *, struct ArrowArray *out);
    const char *(*get_last_error)(struct ArrowArrayStream *);
    void (*release)(struct ArrowArrayStream *);
    void *private_data;
};

#endif

enum { HR_ARROW_BUFFERS = 3 };

struct hr_arrow_column {
    const char *name;
    const char *format; /* of the specification: "l" int64, "L" uint64, "b" bits, "u" text, ... */
    int64_t null_count;
    /* Validity (NULL where nothing is null) and values; text: validity, offsets and text. */
    const void *buffers[HR_ARROW_BUFFERS];
    uint64_t bytes[HR_ARROW_BUFFERS];
};

/*
 * Make a stream of one batch of `rows` rows, freed by its own release(). NULL: no memory.
 * hr_free_arrow_stream() releases one that nobody has taken, and frees its struct.
 */
struct ArrowArrayStream *hr_arrow_stream(const struct hr_arrow_column *columns, uint32_t count,
                                         int64_t rows);
void hr_free_arrow_stream(struct ArrowArrayStream *stream);

#endif
