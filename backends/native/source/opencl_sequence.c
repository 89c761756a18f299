/* Launches of a session on OpenCL: kernel objects of its own, on an in-order queue.
 *
 * OpenCL pointers carry no offset, so every pointer parameter of a kernel is followed by an `int`, the element at which
 * the tensor begins. Dynamic shared memory is one more `__local` pointer at the end.
 */
#include <stdlib.h>

#include "opencl_device.h"
#include "status.h"

/* Arguments that a kernel object has now; a launch sets those that differ. */
typedef struct bound_argument {
    cl_mem memory;
    int32_t base;
} bound_argument;

struct sequence {
    opencl_device *device;
    const plan_file *file;
    cl_command_queue queue;
    cl_kernel *kernels;    /* by kernel */
    bound_argument *bound; /* by argument */
};

static cuts_status check_parameters(sequence *sequence, uint64_t number) {
    const kernel_record *kernel = sequence->file->kernels + number;
    cl_uint found = 0, expected = 2 * kernel->argument_count + (kernel->dynamic_shared ? 1 : 0);
    TRY(check_opencl(
        sequence->device->cl.clGetKernelInfo(sequence->kernels[number], CL_KERNEL_NUM_ARGS, sizeof found, &found, NULL),
        "clGetKernelInfo"));
    if (found != expected)
        return fail(CUTS_ERROR_FORMAT, "kernel %s has %u parameters, the plan binds %u",
                    text_of(sequence->file, kernel->name), found, expected);
    return CUTS_OK;
}

static cuts_status create_kernel(sequence *sequence, uint64_t number) {
    const kernel_record *kernel = sequence->file->kernels + number;
    const opencl_calls *cl = &sequence->device->cl;
    const char *name = text_of(sequence->file, kernel->name);
    cl_int code = CL_SUCCESS;
    sequence->kernels[number] = cl->clCreateKernel(sequence->device->programs[kernel->program], name, &code);
    TRY(check_opencl(code, name));
    TRY(check_parameters(sequence, number));
    for (uint32_t n = 0; n < kernel->argument_count; n++) sequence->bound[kernel->first_argument + n].base = -1;
    if (!kernel->dynamic_shared) return CUTS_OK;
    return check_opencl(
        cl->clSetKernelArg(sequence->kernels[number], 2 * kernel->argument_count, kernel->dynamic_shared, NULL), name);
}

/* Kernels count the elements before a tensor with 32 bits. */
static cuts_status check_bases(const plan_file *file) {
    for (uint64_t n = 0; n < file->launch_count; n++) {
        const launch_record *launch = file->launches + n;
        const kernel_record *kernel = file->kernels + launch->kernel;
        for (uint32_t a = 0; a < kernel->argument_count; a++) {
            uint64_t offset = file->addresses[launch->first_address + a].offset;
            if (offset / file->arguments[kernel->first_argument + a].element_bytes > INT32_MAX)
                return fail(CUTS_ERROR_MEMORY, "kernel %s: a tensor begins beyond the reach of a 32-bit index",
                            text_of(file, kernel->name));
        }
    }
    return CUTS_OK;
}

static cuts_status fill_sequence(sequence *sequence) {
    const plan_file *file = sequence->file;
    cl_int code = CL_SUCCESS;
    sequence->kernels = calloc(file->kernel_count + 1, sizeof *sequence->kernels);
    sequence->bound = calloc(file->argument_count + 1, sizeof *sequence->bound);
    if (!sequence->kernels || !sequence->bound) return fail(CUTS_ERROR_MEMORY, "too little memory for a session");
    sequence->queue =
        sequence->device->cl.clCreateCommandQueue(sequence->device->context, sequence->device->id, 0, &code);
    TRY(check_opencl(code, "clCreateCommandQueue"));
    TRY(check_bases(file));
    for (uint64_t n = 0; n < file->kernel_count; n++) TRY(create_kernel(sequence, n));
    return CUTS_OK;
}

cuts_status prepare_opencl(device *device, const plan_file *file, sequence **prepared) {
    sequence *made = calloc(1, sizeof *made);
    if (!made) return fail(CUTS_ERROR_MEMORY, "too little memory for a session");
    made->device = (opencl_device *)device;
    made->file = file;
    cuts_status status = fill_sequence(made);
    if (status == CUTS_OK)
        *prepared = made;
    else
        discard_opencl(made);
    return status;
}

static cuts_status set_arguments(sequence *sequence, const launch_record *launch, const device_memory *blocks) {
    const plan_file *file = sequence->file;
    const kernel_record *kernel = file->kernels + launch->kernel;
    cl_kernel object = sequence->kernels[launch->kernel];
    for (uint32_t n = 0; n < kernel->argument_count; n++) {
        const address_record *address = file->addresses + launch->first_address + n;
        bound_argument *bound = sequence->bound + kernel->first_argument + n;
        cl_mem memory = (cl_mem)(uintptr_t)blocks[address->block];
        int32_t base = (int32_t)(address->offset / file->arguments[kernel->first_argument + n].element_bytes);
        if (bound->base == base && bound->memory == memory) continue;
        *bound = (bound_argument){memory, base};
        TRY(check_opencl(sequence->device->cl.clSetKernelArg(object, 2 * n, sizeof memory, &memory), "clSetKernelArg"));
        TRY(check_opencl(sequence->device->cl.clSetKernelArg(object, 2 * n + 1, sizeof base, &base), "clSetKernelArg"));
    }
    return CUTS_OK;
}

static cuts_status launch_kernel(sequence *sequence, const launch_record *launch, const device_memory *blocks,
                                 cl_command_queue queue) {
    const kernel_record *kernel = sequence->file->kernels + launch->kernel;
    size_t threads[3], block[3];
    for (int axis = 0; axis < 3; axis++) {
        block[axis] = kernel->block[axis];
        threads[axis] = block[axis] * kernel->grid[axis];
        if (!threads[axis]) return CUTS_OK;
    }
    TRY(set_arguments(sequence, launch, blocks));
    return check_opencl(sequence->device->cl.clEnqueueNDRangeKernel(queue, sequence->kernels[launch->kernel], 3, NULL,
                                                                    threads, block, 0, NULL, NULL),
                        text_of(sequence->file, kernel->name));
}

static cuts_status copy_rows(sequence *sequence, uint32_t after, const device_memory *blocks, cl_command_queue queue) {
    for (uint64_t n = 0; n < sequence->file->copy_count; n++) {
        const copy_record *copy = sequence->file->copies + n;
        if (copy->after != after) continue;
        size_t source[3] = {copy->source.offset, 0, 0}, target[3] = {copy->target.offset, 0, 0};
        size_t region[3] = {copy->width, copy->height, 1};
        cl_mem from = (cl_mem)(uintptr_t)blocks[copy->source.block], to = (cl_mem)(uintptr_t)blocks[copy->target.block];
        TRY(check_opencl(
            sequence->device->cl.clEnqueueCopyBufferRect(queue, from, to, source, target, region, copy->source_pitch,
                                                         copy->source_pitch * copy->height, copy->target_pitch,
                                                         copy->target_pitch * copy->height, 0, NULL, NULL),
            "clEnqueueCopyBufferRect"));
    }
    return CUTS_OK;
}

cuts_status launch_opencl(sequence *sequence, const device_memory *blocks, uint8_t *is_moved, void *stream) {
    cl_command_queue queue = stream ? (cl_command_queue)stream : sequence->queue;
    (void)is_moved; /* each launch compares its arguments */
    TRY(copy_rows(sequence, 0, blocks, queue));
    for (uint64_t n = 0; n < sequence->file->launch_count; n++)
        TRY(launch_kernel(sequence, sequence->file->launches + n, blocks, queue));
    TRY(copy_rows(sequence, 1, blocks, queue));
    return check_opencl(sequence->device->cl.clFinish(queue), "clFinish");
}

cuts_status wait_opencl(sequence *sequence) {
    return check_opencl(sequence->device->cl.clFinish(sequence->queue), "clFinish");
}

void discard_opencl(sequence *sequence) {
    const opencl_calls *cl = &sequence->device->cl;
    for (uint64_t n = 0; sequence->kernels && n < sequence->file->kernel_count; n++)
        if (sequence->kernels[n]) cl->clReleaseKernel(sequence->kernels[n]);
    if (sequence->queue) cl->clReleaseCommandQueue(sequence->queue);
    free(sequence->kernels);
    free(sequence->bound);
    free(sequence);
}
