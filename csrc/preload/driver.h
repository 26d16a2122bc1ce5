/*
 * What the driver says: which row of the region a device has, which context is current, and NVML's
 * figures.
 */
#ifndef HR_DRIVER_H
#define HR_DRIVER_H

#include <stdbool.h>

#include "../region.h"
#include "api.h"

/* ---- Devices (devices.c) -------------------------------------------------------------- */

/* Read the uuids of a region's rows.  False: it cannot be read. */
bool hr_read_rows(hr_region *region);

/*
 * The row of a device in the region, or HR_NO_ROW.  A region that names any device by its uuid
 * has no row for one that it does not name; in one that names none, rows are CUDA's ordinals.
 * A row stays what it was at the first question.
 */
int hr_row_of_device(CUdevice device);

/* The device of a row, -1 where no device of this process has it so far. */
CUdevice hr_device_of_row(int row);

/* The device of a location of memory; -1: it is not on a device. */
CUdevice hr_device_of_location(int type, int id);

enum { HR_UUID_TEXT = 37 }; /* bytes, with the NUL */

/* A device's uuid as text, without "GPU-" or "MIG-".  False: the driver does not say. */
bool hr_uuid_of_device(CUdevice device, char *text);

/*
 * While any thread of the program captures a stream, the driver refuses what is not safe in a
 * capture, and ends the capture.  Questions of this library between these two have no part in it.
 */
int hr_relax_capture(void);
void hr_restore_capture(int mode);

/* While a stream is captured, launches and allocations become nodes of a graph. */
bool hr_is_captured(CUstream stream);

/* The stream that functions with per-thread default streams mean by NULL. */
static inline CUstream hr_own_default(CUstream stream)
{
    return stream == NULL ? CU_STREAM_PER_THREAD : stream;
}

/* ---- Contexts (contexts.c) ------------------------------------------------------------ */

/*
 * An allocation ends with its context, so each context has a number, its *owner* number, which the
 * table of allocations keeps.  A primary context gets another one each time that it is released or
 * reset.
 */
struct hr_context {
    CUdevice device;
    int row; /* or HR_NO_ROW */
    uint32_t owner;
};

/* The calling thread's context.  False: it has none, and the driver will say so itself. */
bool hr_current_context(struct hr_context *out);

/* The context of a stream: the current one for a default stream. */
bool hr_stream_context(CUstream stream, struct hr_context *out);

/* A context that was made; `owner` 0 means that it is its device's primary one. */
void hr_add_context(CUcontext context, CUdevice device, uint32_t owner);
bool hr_find_context(CUcontext context, struct hr_context *out);
void hr_remove_context(CUcontext context);

/* Set in the owner numbers of primary contexts. */
#define HR_PRIMARY_OWNER 0x80000000u

/* For a context that is not a primary one. */
uint32_t hr_new_owner(void);

/*
 * Begin another life of the device's primary context, and return the owner number of the one so
 * far; 0 for no device.  To be called before the driver ends it, so that nothing that is allocated
 * afterwards looks like a part of it.
 */
uint32_t hr_end_life(CUdevice device);

/* Whether an allocation with an owner ended when another owner did: its own, or a later life of
 * the same primary context, as not each release ends it. */
bool hr_is_ended(uint32_t owner, uint32_t ended);

/* ---- NVML (nvml.c) -------------------------------------------------------------------- */

/* NVML's handle of a row's device, MIG devices included.  False: there is none.  NVML is loaded and
 * initialised at the first question. */
bool hr_nvml_device(int row, nvmlDevice_t *out);

/* The processes with a context on a device, in a list that the caller frees; NULL: NVML does not
 * say, or there is no memory. */
struct hr_process_list {
    unsigned count;
    nvmlProcessInfo_t list[];
};
struct hr_process_list *hr_nvml_processes(nvmlDevice_t device);

/* How busy each process has kept a device since then, in microseconds of Unix time.  `list` has
 * room for `room` samples, and grows.  False: this NVML or this device does not say. */
struct hr_busy_list {
    nvmlProcessUtilizationSample_t *list;
    nvmlProcessUtilizationInfo_t *newer; /* the same as the newer function has it */
    unsigned count, room;
};
bool hr_nvml_busy(nvmlDevice_t device, uint64_t since_us, struct hr_busy_list *out);

/* The percent of the time that a device is busy; 0 if that is unknown. */
unsigned hr_nvml_device_busy(nvmlDevice_t device);

/* The pid that NVML knows this process by: its own unless a better one was learnt, as in a
 * container whose driver shows pids of the host. */
unsigned hr_own_nvml_pid(void);

/* The pid that NVML knows the process of a slot by, as far as the slot says. */
static inline unsigned hr_slot_nvml_pid(const struct hr_process *process)
{
    return (unsigned)(process->host_pid > 0 ? process->host_pid : process->pid);
}

/* ---- The own pid in NVML (nvml.c) -------------------------------------------------- */

/* Before a context is made: remember which processes use the device already, and so are not this
 * one.  Nothing is asked once its pid is known. */
void hr_note_others(CUdevice device);

/* Whether NVML lists this process on a row's device, on which it has a context.  Learns its pid
 * there if that is another than its own. */
bool hr_is_listed(int row, nvmlDevice_t device);

/* The bytes that the driver counts for this process on a row's device; `may_learn`: it has a
 * context there, so its pid can be learnt as above.  Once NVML has listed this process, not to list
 * it means nothing used.  False: NVML does not say. */
bool hr_nvml_own_bytes(int row, nvmlDevice_t device, bool may_learn, uint64_t *out);

/* Write the pid by which the outermost visible namespace knows this process into the slot. */
void hr_report_host_pid(hr_region *region);

#endif
