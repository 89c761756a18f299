/* CUDA's device and what the launches of a session need of it. */
#ifndef CUTS_CUDA_DEVICE_H
#define CUTS_CUDA_DEVICE_H

#include "cuda_calls.h"
#include "driver.h"

typedef struct cuda_device {
    device base;
    cuda_calls cu;
    void *library;
    cuda_device_id id;
    cuda_context context; /* the primary one, which other libraries of the process share */
    int capability;       /* 10 * major + minor */
    int window_bytes;     /* the largest window of the L2 policy; 0 where there is none */
    cuda_module *modules;
    cuda_function *functions; /* by kernel: the caller's, or null */
    uint64_t module_count;
} cuda_device;

/* Returns the error of a call of the driver, or CUTS_OK. */
cuts_status check_cuda(const cuda_device *device, cuda_result code, const char *call);

/* Makes the device's context current in this thread until `leave_context`. */
cuts_status enter_context(const cuda_device *device);
void leave_context(const cuda_device *device);

cuts_status prepare_cuda(device *device, const plan_file *file, sequence **prepared);
cuts_status launch_cuda(sequence *sequence, const device_memory *blocks, uint8_t *is_moved, void *stream);
cuts_status set_child(sequence *sequence, uint64_t number, void *graph);
cuts_status wait_cuda(sequence *sequence);
void discard_cuda(sequence *sequence);

#endif
