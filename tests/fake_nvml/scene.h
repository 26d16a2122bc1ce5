/*
 * The scene that the fake driver plays: a text file, named by FAKE_NVML_STATE and read again at
 * each call, so that a test can change it while a program runs. Replace it by rename().
 *
 * One thing per line; text at the end of a line may hold blanks; '#' starts a comment line.
 * PLACE is a device's index, or INDEX.SLOT for one of its MIG devices. Sizes are in bytes.
 *
 *   driver VERSION
 *   device INDEX UUID TOTAL USED GPU_PERCENT MEMORY_PERCENT NAME...
 *   mode INDEX mig-on|mig-off              without it, the device does not support MIG
 *   mig INDEX SLOT UUID GPU_INSTANCE COMPUTE_INSTANCE TOTAL USED NAME...
 *   sensors INDEX CELSIUS MILLIWATTS CORRECTED UNCORRECTED    without it, there are none
 *   process PLACE compute|graphics|mps PID USED|unavailable
 *   sample PLACE PID AGE_US SM MEMORY ENC DEC
 *   quirk stale-samples                    samples older than asked for, and entries not filled in
 *   quirk private                          of live GPUs, each process is shown itself only
 *   quirk blackwell                        the older function has samples of 0 %
 *   quirk slow-lists                       a list of processes takes 0.2 s
 *   quirk unknown-memory                   a list of processes has no memory, as on some systems
 *   quirk wide-lists                       version 3 of the lists has entries of 32 bytes
 *   error FUNCTION CODE [PLACE|* [TIMES]]  the exported function returns the code, TIMES times only
 *   grow FUNCTION TIMES                    a list that outgrows its buffer, TIMES times
 *
 * A driver without its file is one that is not loaded.
 *
 * With FAKE_CUDA_STATE set, devices, processes and samples are those of the fake libcuda.so.1
 * (tests/fake_cuda); a file of this kind beside it may add rules.
 */
#ifndef FAKE_NVML_SCENE_H
#define FAKE_NVML_SCENE_H

#include <stdbool.h>
#include <stdint.h>

#define DEVICES 16
#define MIG_SLOTS 8
#define PROCESSES 65536
#define SAMPLES 65536
#define RULES 64
#define TEXT 256
#define WHOLE (-1)
#define UNAVAILABLE (~0ULL)

enum mig_mode { MIG_UNSUPPORTED, MIG_OFF, MIG_ON };
enum process_kind { COMPUTE, GRAPHICS, MPS };

struct place {
    int device, slot; /* slot WHOLE: the device itself */
};

struct device {
    bool exists;
    char uuid[TEXT], name[TEXT];
    unsigned long long total, used;
    unsigned gpu_percent, memory_percent, gpu_instance, compute_instance;
    enum mig_mode mode;
    bool has_sensors;
    unsigned celsius, milliwatts;
    unsigned long long ecc_errors[2]; /* corrected, uncorrected */
};

struct process {
    struct place place;
    enum process_kind kind;
    unsigned pid;
    unsigned long long used;
};

struct sample {
    struct place place;
    unsigned pid, sm, memory, enc, dec;
    unsigned long long age_us;
};

struct rule {
    char line[TEXT], function[TEXT];
    bool grow, everywhere;
    struct place place;
    int code, times; /* times 0: always */
};

struct scene {
    char driver[TEXT];
    /* Column 0 is the device, column 1 + slot one of its MIG devices. */
    struct device devices[DEVICES][1 + MIG_SLOTS];
    struct rule rules[RULES];
    int process_count, sample_count, rule_count;
    bool slow_lists, stale_samples, wide_lists, is_blackwell, is_private, is_memory_unknown;
    bool is_live; /* of the fake libcuda.so.1 */
    /* As many as are counted above; the rest is not even cleared, so that it takes no memory. */
    struct process processes[PROCESSES];
    struct sample samples[SAMPLES];
};

/* Read the file, if it is another one than last time; false if there is none.  A line that cannot
 * be read ends the program. */
bool read_scene(struct scene *scene);

/* Make devices, processes and samples those of the fake libcuda.so.1; false if there is none. */
bool show_live(struct scene *scene);

/* Count a question about how busy a GPU of the fake libcuda.so.1 is. */
void count_live_question(unsigned gpu);

/* The average of a process's samples since then, in microseconds of Unix time, as the fake
 * libcuda.so.1 has them. */
unsigned live_percent(unsigned gpu, unsigned pid, uint64_t since_us);

/* The code that a rule wants from this function now, or 0. Counts down rules with TIMES. */
int ruled(const struct scene *scene, const char *function, struct place place, bool grow);

struct device *device_at(struct scene *scene, struct place place);

#endif
