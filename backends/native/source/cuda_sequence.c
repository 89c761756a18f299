/* Launches of a session on CUDA: a graph, recorded in the first run; or one by one, where these are too many. */
#include <stdlib.h>
#include <string.h>

#include "cuda_sequence.h"
#include "status.h"

enum {
    DEFAULT_SHARED = 48 * 1024, /* bytes of a block without an attribute of the kernel */
    MAX_NODES = 1 << 17,        /* a recording holds some hundred bytes for each node in the driver's memory */
};

static int is_recorded(const sequence *sequence) {
    return sequence->file->launch_count + sequence->file->copy_count <= MAX_NODES;
}

int is_kernel(const kernel_record *kernel) {
    return kernel && kernel->grid[0] && kernel->grid[1] && kernel->grid[2];
}

const kernel_record *kernel_of(const sequence *sequence, uint64_t launch) {
    uint32_t kernel = sequence->file->launches[launch].kernel;
    return kernel == NO_NUMBER ? NULL : sequence->file->kernels + kernel;
}

static cuts_status encode_map(const cuda_device *device, const map_record *map, cuda_address address, void *encoded) {
    uint32_t steps[MAX_MAP_RANK] = {1, 1, 1, 1, 1};
    void *place = (void *)(uintptr_t)address;
    int type = (int)map->type, swizzle = (int)map->swizzle, promotion = (int)map->promotion;
    if (!device->cu.cuTensorMapEncodeTiled || !device->cu.cuTensorMapEncodeIm2col)
        return fail(CUTS_ERROR_DRIVER, "the driver has no tensor maps: install one for CUDA 12 or later");
    if (map->walked) {
        for (uint32_t n = 0; n < map->walked; n++) steps[n + 1] = map->steps[n];
        cuda_result code = device->cu.cuTensorMapEncodeIm2col(encoded, type, map->rank, place, map->extents,
                                                              map->strides, map->starts, map->ends, map->box[0],
                                                              map->box[1], steps, 0, swizzle, promotion, 0);
        return check_cuda(device, code, "cuTensorMapEncodeIm2col");
    }
    cuda_result code = device->cu.cuTensorMapEncodeTiled(encoded, type, map->rank, place, map->extents, map->strides,
                                                         map->box, steps, 0, swizzle, promotion, 0);
    return check_cuda(device, code, "cuTensorMapEncodeTiled");
}

/* Writes the parameters of a launch over blocks of memory. */
cuts_status fill_parameters(sequence *sequence, const launch_record *launch, const device_memory *blocks) {
    const plan_file *file = sequence->file;
    const kernel_record *kernel = file->kernels + launch->kernel;
    for (uint32_t n = 0; n < kernel->argument_count; n++) {
        const address_record *address = file->addresses + launch->first_address + n;
        uint32_t map = file->arguments[kernel->first_argument + n].map;
        cuda_address place = blocks[address->block] + address->offset;
        if (map == NO_NUMBER)
            *(cuda_address *)sequence->slots[n].bytes = place;
        else
            TRY(encode_map(sequence->device, file->maps + map, place, sequence->slots[n].bytes));
    }
    return CUTS_OK;
}

cuda_kernel_params launch_params(const sequence *sequence, const launch_record *launch) {
    const kernel_record *kernel = sequence->file->kernels + launch->kernel;
    return (cuda_kernel_params){
        .function = sequence->functions[launch->kernel],
        .grid = {kernel->grid[0], kernel->grid[1], kernel->grid[2]},
        .block = {kernel->block[0], kernel->block[1], kernel->block[2]},
        .shared_bytes = kernel->dynamic_shared,
        .parameters = sequence->parameters,
    };
}

/* A copy of one row has no pitch, as devices limit it. */
cuda_copy_params copy_params(const copy_record *copy, const device_memory *blocks) {
    int has_rows = copy->height > 1;
    return (cuda_copy_params){
        .source = {.memory_type = CUDA_MEMORY_DEVICE,
                   .device = blocks[copy->source.block] + copy->source.offset,
                   .pitch = has_rows ? copy->source_pitch : 0,
                   .height = has_rows ? copy->height : 0},
        .target = {.memory_type = CUDA_MEMORY_DEVICE,
                   .device = blocks[copy->target.block] + copy->target.offset,
                   .pitch = has_rows ? copy->target_pitch : 0,
                   .height = has_rows ? copy->height : 0},
        .width = copy->width,
        .height = copy->height,
        .depth = 1,
    };
}

static cuts_status copy_on_stream(sequence *sequence, uint32_t after, const device_memory *blocks, cuda_stream stream) {
    for (uint64_t n = 0; n < sequence->file->copy_count; n++) {
        cuda_copy_params params = copy_params(sequence->file->copies + n, blocks);
        if (sequence->file->copies[n].after == after)
            TRY(check_cuda(sequence->device, sequence->device->cu.cuMemcpy3DAsync_v2(&params, stream),
                           "cuMemcpy3DAsync"));
    }
    return CUTS_OK;
}

static cuts_status launch_one(sequence *sequence, uint64_t number, const device_memory *blocks, cuda_stream stream) {
    const launch_record *launch = sequence->file->launches + number;
    const kernel_record *kernel = kernel_of(sequence, number);
    if (!kernel)
        return fail(CUTS_ERROR_ARGUMENT, "launch %llu is a graph of the caller's: the sequence is too long for one",
                    (unsigned long long)number);
    if (!is_kernel(kernel)) return CUTS_OK;
    TRY(fill_parameters(sequence, launch, blocks));
    cuda_result code = sequence->device->cu.cuLaunchKernel(
        sequence->functions[launch->kernel], kernel->grid[0], kernel->grid[1], kernel->grid[2], kernel->block[0],
        kernel->block[1], kernel->block[2], kernel->dynamic_shared, stream, sequence->parameters, NULL);
    return check_cuda(sequence->device, code, text_of(sequence->file, kernel->name));
}

cuts_status launch_on_stream(sequence *sequence, const device_memory *blocks, cuda_stream stream) {
    TRY(copy_on_stream(sequence, 0, blocks, stream));
    for (uint64_t n = 0; n < sequence->file->launch_count; n++) TRY(launch_one(sequence, n, blocks, stream));
    return copy_on_stream(sequence, 1, blocks, stream);
}

/* Launches a sequence that is too long for a graph; on another stream, after its last launch has ended. */
static cuts_status launch_each(sequence *sequence, const device_memory *blocks, cuda_stream stream) {
    if (sequence->has_run && sequence->last_stream != stream)
        TRY(check_cuda(sequence->device, sequence->device->cu.cuStreamSynchronize(sequence->last_stream),
                       "cuStreamSynchronize"));
    sequence->last_stream = stream;
    return launch_on_stream(sequence, blocks, stream);
}

/* Launches everything. Where a caller records the stream, the sequence's own graph stays as it was. */
static cuts_status launch_within(sequence *sequence, const device_memory *blocks, uint8_t *is_moved,
                                 cuda_stream stream) {
    int state = 0;
    if (!sequence->device->cu.cuStreamIsCapturing(stream, &state) && state == CUDA_CAPTURE_ACTIVE)
        return extend_capture(sequence, blocks, stream);
    sequence->has_run = 1;
    if (!is_recorded(sequence)) return launch_each(sequence, blocks, stream);
    TRY(sequence->executable ? update_graph(sequence, blocks, is_moved) : record_graph(sequence, blocks));
    memset(is_moved, 0, sequence->file->block_count);
    return check_cuda(sequence->device, sequence->device->cu.cuGraphLaunch(sequence->executable, stream),
                      "cuGraphLaunch");
}

cuts_status launch_cuda(sequence *sequence, const device_memory *blocks, uint8_t *is_moved, void *stream) {
    TRY(enter_context(sequence->device));
    cuts_status status = launch_within(sequence, blocks, is_moved, stream);
    leave_context(sequence->device);
    return status;
}

cuts_status wait_cuda(sequence *sequence) {
    if (!sequence->has_run) return CUTS_OK;
    TRY(enter_context(sequence->device));
    cuts_status status = check_cuda(sequence->device, sequence->device->cu.cuCtxSynchronize(), "cuCtxSynchronize");
    leave_context(sequence->device);
    return status;
}

static cuts_status find_function(sequence *sequence, uint64_t number) {
    const kernel_record *kernel = sequence->file->kernels + number;
    const cuda_device *device = sequence->device;
    const char *name = text_of(sequence->file, kernel->name);
    cuda_function *function = sequence->functions + number;
    if (kernel->program == NO_NUMBER) {
        *function = device->functions[number];
        return CUTS_OK;
    }
    TRY(check_cuda(device, device->cu.cuModuleGetFunction(function, device->modules[kernel->program], name), name));
    if ((uint64_t)kernel->static_shared + kernel->dynamic_shared <= DEFAULT_SHARED) return CUTS_OK;
    return check_cuda(
        device, device->cu.cuFuncSetAttribute(*function, CUDA_FUNCTION_DYNAMIC_SHARED, (int)kernel->dynamic_shared),
        name);
}

/* The largest number of parameters of a kernel. */
static uint64_t max_arguments(const plan_file *file) {
    uint64_t most = 1;
    for (uint64_t n = 0; n < file->kernel_count; n++)
        if (file->kernels[n].argument_count > most) most = file->kernels[n].argument_count;
    return most;
}

static cuts_status fill_sequence(sequence *sequence) {
    const plan_file *file = sequence->file;
    uint64_t arguments = max_arguments(file);
    sequence->functions = calloc(file->kernel_count + 1, sizeof *sequence->functions);
    sequence->slots = aligned_alloc(SLOT_ALIGNMENT, arguments * sizeof *sequence->slots);
    sequence->parameters = calloc(arguments, sizeof *sequence->parameters);
    sequence->copy_nodes = calloc(file->copy_count + 1, sizeof *sequence->copy_nodes);
    sequence->launch_nodes = calloc(file->launch_count + 1, sizeof *sequence->launch_nodes);
    sequence->children = calloc(file->launch_count + 1, sizeof *sequence->children);
    if (!sequence->functions || !sequence->slots || !sequence->parameters || !sequence->copy_nodes ||
        !sequence->launch_nodes || !sequence->children)
        return fail(CUTS_ERROR_MEMORY, "too little memory for a session");
    for (uint64_t n = 0; n < arguments; n++) sequence->parameters[n] = sequence->slots[n].bytes;
    TRY(enter_context(sequence->device));
    cuts_status status = CUTS_OK;
    for (uint64_t n = 0; n < file->kernel_count && status == CUTS_OK; n++) status = find_function(sequence, n);
    leave_context(sequence->device);
    return status;
}

cuts_status prepare_cuda(device *device, const plan_file *file, sequence **prepared) {
    sequence *made = calloc(1, sizeof *made);
    if (!made) return fail(CUTS_ERROR_MEMORY, "too little memory for a session");
    made->device = (cuda_device *)device;
    made->file = file;
    cuts_status status = fill_sequence(made);
    if (status == CUTS_OK)
        *prepared = made;
    else
        discard_cuda(made);
    return status;
}

void discard_cuda(sequence *sequence) {
    const cuda_device *device = sequence->device;
    if (sequence->graph && enter_context(device) == CUTS_OK) {
        if (sequence->executable) device->cu.cuGraphExecDestroy(sequence->executable);
        device->cu.cuGraphDestroy(sequence->graph);
        leave_context(device);
    }
    free(sequence->functions);
    free(sequence->slots);
    free(sequence->parameters);
    free(sequence->copy_nodes);
    free(sequence->launch_nodes);
    free(sequence->children);
    free(sequence);
}
