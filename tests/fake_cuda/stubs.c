/*
 * A body for each export that nobody here has written, and the list of them all.
 *
 * functions.inc is made of functions.txt at build: STUB(symbol) for each export, and
 * ANSWER(name, version, is_per_thread, symbol) for what cuGetProcAddress gives.
 */
#include "fake.h"

#define STUB(symbol)                                                                               \
    API __attribute__((weak)) CUresult symbol(void)                                                \
    {                                                                                              \
        return CUDA_ERROR_NOT_SUPPORTED;                                                           \
    }
#define ANSWER(name, version, is_per_thread, symbol)
#include "functions.inc"
#undef STUB
#undef ANSWER

#define STUB(symbol)
#define ANSWER(name, version, is_per_thread, symbol) {name, version, is_per_thread, (void *)symbol},
const struct answer answers[] = {
#include "functions.inc"
    {0}};
