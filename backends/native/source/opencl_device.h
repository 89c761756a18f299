/* OpenCL's device and what the launches of a session need of it. */
#ifndef CUTS_OPENCL_DEVICE_H
#define CUTS_OPENCL_DEVICE_H

#include "driver.h"
#include "opencl_calls.h"

typedef struct opencl_device {
    device base;
    opencl_calls cl;
    void *library;
    cl_context context;
    cl_device_id id;
    cl_command_queue queue; /* of copies */
    cl_program *programs;
    uint64_t program_count;
    int shares_host_memory;
} opencl_device;

/* Returns the error of a call of OpenCL, or CUTS_OK. */
cuts_status check_opencl(cl_int code, const char *call);

cuts_status prepare_opencl(device *device, const plan_file *file, sequence **prepared);
cuts_status launch_opencl(sequence *sequence, const device_memory *blocks, uint8_t *is_moved, void *stream);
cuts_status wait_opencl(sequence *sequence);
void discard_opencl(sequence *sequence);

#endif
