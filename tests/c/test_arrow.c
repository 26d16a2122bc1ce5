/* A table can be taken by Arrow's rules in any order of moves and releases, and frees itself. */
#include "arrow.h"
#include "check.h"

static const uint64_t numbers[] = {7, 0, UINT64_MAX};
static const uint8_t validity[] = {5}; /* the second is null */
static const int32_t offsets[] = {0, 2, 2, 5};

static struct ArrowArrayStream *new_stream(void)
{
    /* The core copies: names and buffers may be gone when it is read. */
    char number_name[] = "number", text_name[] = "text", text[] = "abcde";
    const struct hr_arrow_column columns[] = {
        {number_name, "L", 1, {validity, numbers}, {sizeof(validity), sizeof(numbers)}},
        {text_name, "u", 0, {NULL, offsets, text}, {0, sizeof(offsets), 5}},
    };
    struct ArrowArrayStream *stream = hr_arrow_stream(columns, 2, 3);
    NEED(stream != NULL);
    memset(number_name, '#', sizeof(number_name));
    memset(text, '#', sizeof(text));
    return stream;
}

static void check_numbers(const struct ArrowArray *array)
{
    CHECK(array->length == 3 && array->null_count == 1 && array->n_buffers == 2);
    CHECK(memcmp(array->buffers[0], validity, sizeof(validity)) == 0);
    CHECK(memcmp(array->buffers[1], numbers, sizeof(numbers)) == 0);
}

static void test_one_batch(void)
{
    struct ArrowArrayStream *stream = new_stream();
    struct ArrowArray array, end;
    CHECK(stream->get_next(stream, &array) == 0);
    CHECK(array.n_children == 2 && array.length == 3 && array.n_buffers == 1);
    check_numbers(array.children[0]);
    CHECK(memcmp(array.children[1]->buffers[2], "abcde", 5) == 0);
    CHECK(stream->get_next(stream, &end) == 0 && end.release == NULL);
    CHECK(stream->get_last_error(stream) == NULL);
    array.release(&array);
    CHECK(array.release == NULL);
    hr_free_arrow_stream(stream);
}

/* A consumer may take one child away, and keep it when all else has gone. */
static void test_moved_children(void)
{
    struct ArrowArrayStream *stream = new_stream();
    struct ArrowSchema schema, other, moved_schema;
    struct ArrowArray array, moved;
    CHECK(stream->get_schema(stream, &schema) == 0 && stream->get_schema(stream, &other) == 0);
    CHECK(stream->get_next(stream, &array) == 0);
    stream->release(stream);
    hr_free_arrow_stream(stream);

    moved = *array.children[0];
    array.children[0]->release = NULL;
    moved_schema = *schema.children[1];
    schema.children[1]->release = NULL;
    array.release(&array);
    schema.release(&schema);
    other.release(&other);

    check_numbers(&moved);
    CHECK(strcmp(moved_schema.name, "text") == 0 && strcmp(moved_schema.format, "u") == 0);
    CHECK(moved_schema.flags == ARROW_FLAG_NULLABLE);
    moved.release(&moved);
    moved_schema.release(&moved_schema);
}

static void test_empty(void)
{
    hr_free_arrow_stream(new_stream()); /* that nobody took */
    struct ArrowArrayStream *stream = hr_arrow_stream(NULL, 0, 0);
    struct ArrowArray array;
    NEED(stream != NULL);
    CHECK(stream->get_next(stream, &array) == 0);
    CHECK(array.length == 0 && array.n_children == 0);
    array.release(&array);
    hr_free_arrow_stream(stream);
}

int main(void)
{
    RUN(test_one_batch);
    RUN(test_moved_children);
    RUN(test_empty);
    return check_report("test_arrow");
}
