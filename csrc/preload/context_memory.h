/*
 * What the driver uses for itself on behalf of this process: contexts, code, local memory.  Only
 * NVML tells, with what the process has allocated in one figure.
 */
#ifndef HR_CONTEXT_MEMORY_H
#define HR_CONTEXT_MEMORY_H

#include "cuda_api.h"

/*
 * Count as context what the driver counts for this process on the row, beyond the memory that the
 * process has allocated there, whatever the limit: it is there.  Where allocations are going on at
 * the moment, nothing is changed, nor where NVML does not show this process.
 */
void hr_measure_contexts(int row);

/*
 * Count a context that was just made.  CUDA_ERROR_OUT_OF_MEMORY: it would pass the limit; the
 * caller ends the context and measures again.
 */
CUresult hr_admit_context(int row);

#endif
