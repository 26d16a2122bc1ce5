/*
 * What is counted as context, by a driver and a region that are a few numbers here:
 * `context_memory_model`.  It ends the program if one is wrong.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "../../csrc/preload/budget.h"
#include "../../csrc/preload/charges.h"
#include "../../csrc/preload/context_memory.h"
#include "../../csrc/preload/forks.h"
#include "../../csrc/preload/nvml.h"
#include "../../csrc/preload/own_pid.h"
#include "../../csrc/preload/session.h"

#define MUST_SHOW                                                                                  \
    "counted are %llu and %llu", (unsigned long long)counted[0],                                   \
        (unsigned long long)counted[HR_DEVICES - 1]
#include "must.h"

static uint64_t counted[HR_DEVICES];

/* The device of row 0 is 3, that of the last row 4; row 1 has none. */
enum { LAST = HR_DEVICES - 1 };

/* ---- The driver ----------------------------------------------------------------------- */

static uint64_t figures[HR_DEVICES];   /* of this process, in NVML */
static enum hr_nvml_answer answers[2]; /* before its pid is known, and after */
static bool is_learnt, can_learn, is_confirmed, has_no_nvml;
static int questions, lessons, naps;

const struct hr_nvml_functions *hr_nvml(void)
{
    static const struct hr_nvml_functions functions;
    return has_no_nvml ? NULL : &functions;
}

/* Calls that go on while NVML is asked; `quiet_after` so many questions there are none. */
static int quiet_after;
static struct hr_row_state change;

enum hr_nvml_answer hr_nvml_own_bytes(CUdevice device, uint64_t *out)
{
    MUST(device == 3 || device == 4);
    questions++;
    change.begun += questions <= quiet_after;
    change.ended += questions <= quiet_after;
    enum hr_nvml_answer answer = answers[is_learnt];
    *out = answer == HR_NVML_FOUND ? figures[device == 3 ? 0 : LAST] : 77;
    return answer;
}

bool hr_learn_own_pid(int row, CUdevice device)
{
    MUST(device == (row == 0 ? 3 : 4));
    lessons++;
    is_learnt = can_learn;
    return can_learn;
}

void hr_confirm_own_pid(void)
{
    is_confirmed = true;
}

bool hr_is_own_pid_known(void)
{
    return is_confirmed;
}

void hr_forget_own_pid(void)
{
    is_confirmed = false;
}

CUdevice hr_device_of_row(int row)
{
    return row == 0 ? 3 : row == LAST ? 4 : -1;
}

int nanosleep(const struct timespec *time, struct timespec *left)
{
    (void)left;
    MUST(time->tv_sec == 0 && time->tv_nsec <= 10000000);
    naps++;
    return 0;
}

/* ---- The region ----------------------------------------------------------------------- */

static uint64_t limit, others; /* others: what the rest of the row counts */
static char handle_[1];
static bool has_no_region, is_refused;

struct hr_row_state hr_state_of_row(int row)
{
    MUST(row == 0 || row == LAST);
    return change;
}

CUresult hr_take_bytes(int row, enum hr_kind kind, uint64_t bytes)
{
    MUST(kind == HR_CONTEXT && bytes != 0);
    if (is_refused)
        return CUDA_ERROR_NOT_PERMITTED;
    if (counted[row] + others + bytes > limit)
        return CUDA_ERROR_OUT_OF_MEMORY;
    counted[row] += bytes;
    return CUDA_SUCCESS;
}

void hr_count_bytes(int row, enum hr_kind kind, uint64_t bytes)
{
    MUST(kind == HR_CONTEXT);
    counted[row] += bytes;
}

void hr_give_back_bytes(int row, enum hr_kind kind, uint64_t bytes)
{
    MUST(kind == HR_CONTEXT && counted[row] >= bytes);
    counted[row] -= bytes;
}

hr_region *hr_session_region(void)
{
    return has_no_region ? NULL : (hr_region *)(void *)handle_;
}

bool hr_passes_limit(hr_region *region, int row)
{
    MUST(region == (hr_region *)(void *)handle_);
    return counted[row] + others > limit;
}

static void begin(void)
{
    hr_fork_context_memory(HR_BEFORE_FORK);
    hr_fork_context_memory(HR_IN_CHILD);
    for (int row = 0; row < HR_DEVICES; row++)
        figures[row] = counted[row] = 0;
    answers[0] = answers[1] = HR_NVML_FOUND;
    is_learnt = can_learn = is_confirmed = has_no_nvml = has_no_region = is_refused = false;
    questions = lessons = naps = quiet_after = 0;
    change = (struct hr_row_state){.begun = 4, .ended = 4};
    limit = 1000;
    others = 0;
}

/* ---- Checks --------------------------------------------------------------------------- */

static void check_figures(void)
{
    begin();
    figures[0] = 250;
    figures[LAST] = 99;
    MUST(hr_admit_context(0) == CUDA_SUCCESS && counted[0] == 250 && is_confirmed);
    hr_measure_contexts(0);
    MUST(counted[0] == 250 && questions == 2 && naps == 0 && lessons == 0);
    hr_measure_contexts(LAST);
    MUST(counted[LAST] == 99 && counted[0] == 250);
    /* Without what it has allocated. */
    change.bytes = 60;
    hr_measure_contexts(0);
    MUST(counted[0] == 190);
    change.bytes = 250;
    hr_measure_contexts(0);
    MUST(counted[0] == 0);
    change.bytes = 300;
    hr_measure_contexts(0);
    MUST(counted[0] == 0);
    /* What is there counts, whatever the limit. */
    change.bytes = 0;
    figures[0] = 5000;
    hr_measure_contexts(0);
    MUST(counted[0] == 5000);
    /* Rows without a device, and no row. */
    questions = 0;
    hr_measure_contexts(1);
    MUST(hr_admit_context(1) == CUDA_SUCCESS && hr_admit_context(HR_NO_ROW) == CUDA_SUCCESS);
    has_no_nvml = true;
    MUST(hr_admit_context(0) == CUDA_SUCCESS && questions == 0);
}

static void check_refusals(void)
{
    begin();
    figures[0] = 1001;
    MUST(hr_admit_context(0) == CUDA_ERROR_OUT_OF_MEMORY && counted[0] == 0);
    figures[0] = 1000;
    MUST(hr_admit_context(0) == CUDA_SUCCESS && counted[0] == 1000);
    figures[0] = 400;
    hr_measure_contexts(0);
    others = 400;
    figures[0] = 601;
    MUST(hr_admit_context(0) == CUDA_ERROR_OUT_OF_MEMORY && counted[0] == 400);
    figures[0] = 600;
    MUST(hr_admit_context(0) == CUDA_SUCCESS && counted[0] == 600);
    /* Somebody else may have counted the new one, whatever the limit. */
    figures[0] = 700;
    hr_measure_contexts(0);
    MUST(counted[0] == 700 && hr_admit_context(0) == CUDA_ERROR_OUT_OF_MEMORY);
    has_no_region = true;
    MUST(hr_admit_context(0) == CUDA_SUCCESS);
    begin();
    is_refused = true;
    figures[0] = 1;
    MUST(hr_admit_context(0) == CUDA_ERROR_NOT_PERMITTED && counted[0] == 0);
    is_refused = false;
    MUST(hr_admit_context(0) == CUDA_SUCCESS && counted[0] == 1);
}

/* While allocations go on, the driver's figure and ours are not of one moment. */
static void check_changes(void)
{
    begin();
    figures[0] = 250;
    quiet_after = 1000;
    hr_measure_contexts(0);
    MUST(counted[0] == 0 && questions == 3 && naps == 0);
    questions = 0;
    MUST(hr_admit_context(0) == CUDA_SUCCESS && counted[0] == 0 && questions >= 50);
    MUST(naps > questions - 5);
    questions = 0;
    quiet_after = 2;
    hr_measure_contexts(0);
    MUST(counted[0] == 250 && questions == 3);
    /* One that has begun and has not ended goes on. */
    begin();
    figures[0] = 250;
    change.begun++;
    hr_measure_contexts(0);
    MUST(counted[0] == 0);
    change.ended++;
    hr_measure_contexts(0);
    MUST(counted[0] == 250);
    begin();
    figures[0] = 250;
    quiet_after = 40;
    MUST(hr_admit_context(0) == CUDA_SUCCESS && counted[0] == 250 && questions == 41);
}

/* NVML does not name this process, or does not answer. */
static void check_silence(void)
{
    begin();
    figures[0] = 250;
    answers[0] = HR_NVML_SILENT;
    MUST(hr_admit_context(0) == CUDA_SUCCESS && counted[0] == 0 && lessons == 0 && !is_confirmed);
    answers[0] = HR_NVML_ABSENT;
    begin();
    figures[0] = 250;
    answers[0] = HR_NVML_ABSENT;
    hr_measure_contexts(0);
    MUST(counted[0] == 0 && lessons == 0); /* it has made no context */
    MUST(hr_admit_context(0) == CUDA_SUCCESS && counted[0] == 0 && lessons == 1 && !is_confirmed);
    hr_measure_contexts(0);
    MUST(lessons == 2);
    hr_measure_contexts(LAST);
    MUST(lessons == 2);
    can_learn = true;
    hr_measure_contexts(0);
    MUST(counted[0] == 250 && is_confirmed);
    /* Once it was named, not to be named means to use nothing; no answer means nothing. */
    answers[1] = HR_NVML_SILENT;
    hr_measure_contexts(0);
    MUST(counted[0] == 250);
    answers[1] = HR_NVML_ABSENT;
    can_learn = false;
    hr_measure_contexts(0);
    MUST(counted[0] == 0);
    /* A child has neither contexts nor what its parent has counted. */
    begin();
    figures[0] = 250;
    MUST(hr_admit_context(0) == CUDA_SUCCESS && counted[0] == 250);
    hr_fork_context_memory(HR_BEFORE_FORK);
    hr_fork_context_memory(HR_IN_PARENT);
    hr_measure_contexts(0);
    MUST(counted[0] == 250 && is_confirmed);
    counted[0] = 0;
    hr_fork_context_memory(HR_IN_CHILD);
    MUST(!is_confirmed);
    answers[0] = HR_NVML_ABSENT;
    hr_measure_contexts(0);
    MUST(lessons == 0);
    answers[0] = HR_NVML_FOUND;
    hr_measure_contexts(0);
    MUST(counted[0] == 250);
}

/* A thread that is to be cancelled goes on until it has let go of what others wait for. */
static void *ask_and_end(void *argument)
{
    (void)argument;
    int state;
    figures[0]++;
    hr_measure_contexts(0);
    MUST(pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &state) == 0);
    MUST(state == PTHREAD_CANCEL_ENABLE);
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
    hr_measure_contexts(0);
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
    MUST(state == PTHREAD_CANCEL_DISABLE);
    return NULL;
}

int main(void)
{
    pthread_t thread;
    check_figures();
    check_refusals();
    check_changes();
    check_silence();
    begin();
    MUST(pthread_create(&thread, NULL, ask_and_end, NULL) == 0);
    MUST(pthread_join(thread, NULL) == 0 && counted[0] == 1);
    return 0;
}
