/* Launches of a session on CUDA: one graph, recorded in the first run.
 *
 * Nodes that touch memory which has moved are updated before a launch. A graph may be launched on several streams: the
 * driver begins one launch of it when the previous one has ended.
 */
#include <stdlib.h>

#include "cuda_device.h"
#include "status.h"

enum {
    DEFAULT_SHARED = 48 * 1024, /* bytes of a block without an attribute of the kernel */
    MAX_NODES = 1 << 17,        /* a recording holds some hundred bytes for each node in the driver's memory */
    MAX_EARLY_NODES = 4096,     /* of a graph whose kernels are placed before their predecessors end */
    MIN_EARLY_CAPABILITY = 90,
    SLOT_BYTES = CUDA_MAP_BYTES,
    SLOT_ALIGNMENT = 64,
};

/* A parameter of a kernel: an address, or a tensor map. */
typedef struct parameter_slot {
    _Alignas(SLOT_ALIGNMENT) char bytes[SLOT_BYTES];
} parameter_slot;

struct sequence {
    cuda_device *device;
    const plan_file *file;
    cuda_function *functions; /* by kernel */
    parameter_slot *slots;    /* parameters of one launch, which the driver copies */
    void **parameters;        /* addresses of the slots */
    cuda_node *copy_nodes;    /* by copy */
    cuda_node *launch_nodes;  /* by launch */
    cuda_node *waits;         /* predecessors of one node */
    cuda_graph graph;
    cuda_executable executable;
    cuda_stream last_stream;  /* of a sequence that is too long for a graph */
    int has_run;
};

static int is_recorded(const sequence *sequence) {
    return sequence->file->launch_count + sequence->file->copy_count <= MAX_NODES;
}

static int is_empty(const kernel_record *kernel) {
    return !kernel->grid[0] || !kernel->grid[1] || !kernel->grid[2];
}

static const kernel_record *kernel_of(const sequence *sequence, uint64_t launch) {
    return sequence->file->kernels + sequence->file->launches[launch].kernel;
}

static cuts_status encode_map(const cuda_device *device, const map_record *map, cuda_address address, void *encoded) {
    static const uint32_t ones[MAX_MAP_RANK] = {1, 1, 1, 1, 1};
    if (!device->cu.cuTensorMapEncodeTiled)
        return fail(CUTS_ERROR_DRIVER, "the driver has no tensor maps: install one for CUDA 12 or later");
    cuda_result code = device->cu.cuTensorMapEncodeTiled(
        encoded, (int)map->type, map->rank, (void *)(uintptr_t)address, map->extents, map->strides, map->box, ones, 0,
        (int)map->swizzle, (int)map->promotion, 0);
    return check_cuda(device, code, "cuTensorMapEncodeTiled");
}

/* Writes the parameters of a launch over blocks of memory. */
static cuts_status fill_parameters(sequence *sequence, const launch_record *launch, const device_memory *blocks) {
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

static cuda_kernel_params launch_params(const sequence *sequence, const launch_record *launch) {
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
static cuda_copy_params copy_params(const copy_record *copy, const device_memory *blocks) {
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

/* Adds the copies before the launches or after them, one after another; `last` becomes the last of them. */
static cuts_status add_copies(sequence *sequence, uint32_t after, const device_memory *blocks, cuda_node *waits,
                              size_t wait_count, cuda_node *last) {
    const cuda_device *device = sequence->device;
    for (uint64_t n = 0; n < sequence->file->copy_count; n++) {
        if (sequence->file->copies[n].after != after) continue;
        cuda_copy_params params = copy_params(sequence->file->copies + n, blocks);
        cuda_node *node = sequence->copy_nodes + n;
        TRY(check_cuda(device,
                       device->cu.cuGraphAddMemcpyNode(node, sequence->graph, waits, wait_count, &params, device->context),
                       "cuGraphAddMemcpyNode"));
        *last = *node;
        waits = last;
        wait_count = 1;
    }
    return CUTS_OK;
}

/* Whether a kernel may be placed before its only predecessor ends, as its code waits for that end. */
static int may_begin_early(const sequence *sequence, uint64_t number, uint64_t before) {
    const cuda_device *device = sequence->device;
    return device->cu.cuGraphAddDependencies_v2 && device->capability >= MIN_EARLY_CAPABILITY &&
           sequence->file->launch_count <= MAX_EARLY_NODES && kernel_of(sequence, number)->waits &&
           !is_empty(kernel_of(sequence, before));
}

static cuts_status add_early_edge(sequence *sequence, cuda_node from, cuda_node to) {
    cuda_edge edge = {.from_port = CUDA_PORT_PROGRAMMATIC, .type = CUDA_EDGE_PROGRAMMATIC};
    const cuda_device *device = sequence->device;
    return check_cuda(device, device->cu.cuGraphAddDependencies_v2(sequence->graph, &from, &to, &edge, 1),
                      "cuGraphAddDependencies");
}

/* Lets the L2 cache evict first the bytes of an argument that no other launch reads. */
static cuts_status set_window(sequence *sequence, uint64_t number, const device_memory *blocks) {
    const launch_record *launch = sequence->file->launches + number;
    const cuda_device *device = sequence->device;
    if (launch->evict_first == NO_NUMBER || !device->window_bytes) return CUTS_OK;
    const address_record *address = sequence->file->addresses + launch->first_address + launch->evict_first;
    uint64_t limit = (uint64_t)device->window_bytes, nbytes = launch->evict_first_bytes;
    cuda_attribute window = {
        .base = (void *)(uintptr_t)(blocks[address->block] + address->offset),
        .nbytes = nbytes < limit ? nbytes : limit,
        .hit_ratio = 1.0f,
        .hit = CUDA_PROPERTY_STREAMING,
    };
    device->cu.cuGraphKernelNodeSetAttribute(sequence->launch_nodes[number], CUDA_ATTRIBUTE_WINDOW, &window);
    return CUTS_OK; /* a launch without the policy is only slower */
}

static cuts_status add_kernel(sequence *sequence, uint64_t number, const device_memory *blocks, size_t wait_count,
                              int is_early) {
    const cuda_calls *cu = &sequence->device->cu;
    const launch_record *launch = sequence->file->launches + number;
    cuda_node *node = sequence->launch_nodes + number;
    TRY(fill_parameters(sequence, launch, blocks));
    cuda_kernel_params params = launch_params(sequence, launch);
    cuda_result code = cu->cuGraphAddKernelNode(node, sequence->graph, sequence->waits, is_early ? 0 : wait_count, &params);
    TRY(check_cuda(sequence->device, code, text_of(sequence->file, kernel_of(sequence, number)->name)));
    if (is_early) TRY(add_early_edge(sequence, sequence->waits[0], *node));
    return set_window(sequence, number, blocks);
}

/* Adds a launch after its dependencies, or after the copies that precede all launches. */
static cuts_status add_launch(sequence *sequence, uint64_t number, const device_memory *blocks, cuda_node copied) {
    const launch_record *launch = sequence->file->launches + number;
    int is_in_row = launch->wait_count == NO_NUMBER;
    size_t count = is_in_row ? (number ? 1 : 0) : launch->wait_count;
    uint64_t before = number - 1;
    for (size_t n = 0; n < count; n++) {
        if (!is_in_row) before = (uint64_t)sequence->file->numbers[launch->first_wait + n];
        sequence->waits[n] = sequence->launch_nodes[before];
    }
    int is_early = count == 1 && !is_empty(kernel_of(sequence, number)) && may_begin_early(sequence, number, before);
    if (!count && copied) sequence->waits[count++] = copied;
    if (!is_empty(kernel_of(sequence, number))) return add_kernel(sequence, number, blocks, count, is_early);
    return check_cuda(sequence->device,
                      sequence->device->cu.cuGraphAddEmptyNode(sequence->launch_nodes + number, sequence->graph,
                                                               sequence->waits, count),
                      "cuGraphAddEmptyNode");
}

/* Lists the launches that no other waits for: the copies after the launches follow them. */
static size_t list_last_launches(sequence *sequence, uint8_t *is_waited) {
    const plan_file *file = sequence->file;
    size_t count = 0;
    for (uint64_t n = 0; n < file->launch_count; n++) {
        const launch_record *launch = file->launches + n;
        if (launch->wait_count == NO_NUMBER && n) is_waited[n - 1] = 1;
        for (uint32_t w = 0; launch->wait_count != NO_NUMBER && w < launch->wait_count; w++)
            is_waited[file->numbers[launch->first_wait + w]] = 1;
    }
    for (uint64_t n = 0; n < file->launch_count; n++)
        if (!is_waited[n]) sequence->waits[count++] = sequence->launch_nodes[n];
    return count;
}

static cuts_status add_last_copies(sequence *sequence, const device_memory *blocks, cuda_node copied) {
    uint8_t *is_waited = calloc(sequence->file->launch_count + 1, 1);
    if (!is_waited) return fail(CUTS_ERROR_MEMORY, "too little memory to record a plan");
    size_t count = list_last_launches(sequence, is_waited);
    free(is_waited);
    if (!count && copied) sequence->waits[count++] = copied;
    cuda_node last = NULL;
    return add_copies(sequence, 1, blocks, sequence->waits, count, &last);
}

static cuts_status record(sequence *sequence, const device_memory *blocks) {
    const cuda_calls *cu = &sequence->device->cu;
    cuda_node copied = NULL;
    TRY(check_cuda(sequence->device, cu->cuGraphCreate(&sequence->graph, 0), "cuGraphCreate"));
    TRY(add_copies(sequence, 0, blocks, NULL, 0, &copied));
    for (uint64_t n = 0; n < sequence->file->launch_count; n++) TRY(add_launch(sequence, n, blocks, copied));
    TRY(add_last_copies(sequence, blocks, copied));
    return check_cuda(sequence->device, cu->cuGraphInstantiateWithFlags(&sequence->executable, sequence->graph, 0),
                      "cuGraphInstantiate");
}

/* Removes a recording that failed half-way, so that the next run begins anew. */
static cuts_status record_whole(sequence *sequence, const device_memory *blocks) {
    cuts_status status = record(sequence, blocks);
    if (status != CUTS_OK && sequence->graph) {
        sequence->device->cu.cuGraphDestroy(sequence->graph);
        sequence->graph = NULL;
    }
    return status;
}

static int touches_moved(const sequence *sequence, uint64_t number, const uint8_t *is_moved) {
    const launch_record *launch = sequence->file->launches + number;
    for (uint32_t n = 0; n < kernel_of(sequence, number)->argument_count; n++)
        if (is_moved[sequence->file->addresses[launch->first_address + n].block]) return 1;
    return 0;
}

static cuts_status update_launch(sequence *sequence, uint64_t number, const device_memory *blocks) {
    const launch_record *launch = sequence->file->launches + number;
    if (is_empty(kernel_of(sequence, number))) return CUTS_OK;
    TRY(fill_parameters(sequence, launch, blocks));
    cuda_kernel_params params = launch_params(sequence, launch);
    return check_cuda(sequence->device,
                      sequence->device->cu.cuGraphExecKernelNodeSetParams(sequence->executable,
                                                                          sequence->launch_nodes[number], &params),
                      "cuGraphExecKernelNodeSetParams");
}

static cuts_status update_copy(sequence *sequence, uint64_t number, const device_memory *blocks) {
    cuda_copy_params params = copy_params(sequence->file->copies + number, blocks);
    const cuda_device *device = sequence->device;
    return check_cuda(device,
                      device->cu.cuGraphExecMemcpyNodeSetParams(sequence->executable, sequence->copy_nodes[number],
                                                                &params, device->context),
                      "cuGraphExecMemcpyNodeSetParams");
}

static cuts_status update_moved(sequence *sequence, const device_memory *blocks, const uint8_t *is_moved) {
    const plan_file *file = sequence->file;
    for (uint64_t n = 0; n < file->launch_count; n++)
        if (touches_moved(sequence, n, is_moved)) TRY(update_launch(sequence, n, blocks));
    for (uint64_t n = 0; n < file->copy_count; n++)
        if (is_moved[file->copies[n].source.block] || is_moved[file->copies[n].target.block])
            TRY(update_copy(sequence, n, blocks));
    return CUTS_OK;
}

static int has_moved(const plan_file *file, const uint8_t *is_moved) {
    for (uint64_t n = 0; n < file->block_count; n++)
        if (is_moved[n]) return 1;
    return 0;
}

static cuts_status copy_on_stream(sequence *sequence, uint32_t after, const device_memory *blocks, cuda_stream stream) {
    for (uint64_t n = 0; n < sequence->file->copy_count; n++) {
        cuda_copy_params params = copy_params(sequence->file->copies + n, blocks);
        if (sequence->file->copies[n].after == after)
            TRY(check_cuda(sequence->device, sequence->device->cu.cuMemcpy3DAsync_v2(&params, stream), "cuMemcpy3DAsync"));
    }
    return CUTS_OK;
}

static cuts_status launch_on_stream(sequence *sequence, uint64_t number, const device_memory *blocks, cuda_stream stream) {
    const launch_record *launch = sequence->file->launches + number;
    const kernel_record *kernel = kernel_of(sequence, number);
    if (is_empty(kernel)) return CUTS_OK;
    TRY(fill_parameters(sequence, launch, blocks));
    cuda_result code = sequence->device->cu.cuLaunchKernel(
        sequence->functions[launch->kernel], kernel->grid[0], kernel->grid[1], kernel->grid[2], kernel->block[0],
        kernel->block[1], kernel->block[2], kernel->dynamic_shared, stream, sequence->parameters, NULL);
    return check_cuda(sequence->device, code, text_of(sequence->file, kernel->name));
}

/* Launches a sequence that is too long for a graph; on another stream, after its last launch has ended. */
static cuts_status launch_each(sequence *sequence, const device_memory *blocks, cuda_stream stream) {
    if (sequence->has_run && sequence->last_stream != stream)
        TRY(check_cuda(sequence->device, sequence->device->cu.cuStreamSynchronize(sequence->last_stream),
                       "cuStreamSynchronize"));
    sequence->last_stream = stream;
    TRY(copy_on_stream(sequence, 0, blocks, stream));
    for (uint64_t n = 0; n < sequence->file->launch_count; n++) TRY(launch_on_stream(sequence, n, blocks, stream));
    return copy_on_stream(sequence, 1, blocks, stream);
}

static cuts_status launch_within(sequence *sequence, const device_memory *blocks, const uint8_t *is_moved,
                                 cuda_stream stream) {
    sequence->has_run = 1;
    if (!is_recorded(sequence)) return launch_each(sequence, blocks, stream);
    if (!sequence->executable)
        TRY(record_whole(sequence, blocks));
    else if (has_moved(sequence->file, is_moved))
        TRY(update_moved(sequence, blocks, is_moved));
    return check_cuda(sequence->device, sequence->device->cu.cuGraphLaunch(sequence->executable, stream), "cuGraphLaunch");
}

cuts_status launch_cuda(sequence *sequence, const device_memory *blocks, const uint8_t *is_moved, void *stream) {
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
    TRY(check_cuda(device, device->cu.cuModuleGetFunction(function, device->modules[kernel->program], name), name));
    if ((uint64_t)kernel->static_shared + kernel->dynamic_shared <= DEFAULT_SHARED) return CUTS_OK;
    return check_cuda(device,
                      device->cu.cuFuncSetAttribute(*function, CUDA_FUNCTION_DYNAMIC_SHARED, (int)kernel->dynamic_shared),
                      name);
}

/* The largest number of parameters of a kernel, and of predecessors of a node. */
static uint64_t max_arguments(const plan_file *file) {
    uint64_t most = 1;
    for (uint64_t n = 0; n < file->kernel_count; n++)
        if (file->kernels[n].argument_count > most) most = file->kernels[n].argument_count;
    return most;
}

static uint64_t max_waits(const plan_file *file) {
    uint64_t most = file->launch_count + 1;
    for (uint64_t n = 0; n < file->launch_count; n++)
        if (file->launches[n].wait_count != NO_NUMBER && file->launches[n].wait_count > most)
            most = file->launches[n].wait_count;
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
    sequence->waits = calloc(max_waits(file), sizeof *sequence->waits);
    if (!sequence->functions || !sequence->slots || !sequence->parameters || !sequence->copy_nodes ||
        !sequence->launch_nodes || !sequence->waits)
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
    free(sequence->waits);
    free(sequence);
}
