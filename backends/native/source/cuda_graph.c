/* The launches of a session as nodes: of its own graph, or of one that a caller records.
 *
 * A graph may be launched on several streams: the driver begins one launch of it when the previous one has ended.
 */
#include <stdlib.h>
#include <string.h>

#include "cuda_sequence.h"
#include "status.h"

enum {
    MAX_EARLY_NODES = 4096, /* of a graph whose kernels are placed before their predecessors end */
    MIN_EARLY_CAPABILITY = 90,
};

/* A graph under construction: of a sequence's own, or of a caller who records a stream. */
typedef struct recording {
    sequence *sequence;
    const device_memory *blocks;
    cuda_graph graph;
    cuda_node *copy_nodes, *launch_nodes; /* by copy and by launch */
    cuda_node *first;                     /* what launches without dependencies follow */
    size_t first_count;
    cuda_node *front; /* what the next node follows, with room for all launches and for `first` */
    size_t front_count;
} recording;

static void follow_first(recording *made) {
    memcpy(made->front, made->first, made->first_count * sizeof *made->front);
    made->front_count = made->first_count;
}

/* Adds the copies before the launches or after them, one after another; the front becomes the last of them. */
static cuts_status add_copies(recording *made, uint32_t after) {
    const cuda_device *device = made->sequence->device;
    const plan_file *file = made->sequence->file;
    for (uint64_t n = 0; n < file->copy_count; n++) {
        if (file->copies[n].after != after) continue;
        cuda_copy_params params = copy_params(file->copies + n, made->blocks);
        TRY(check_cuda(device,
                       device->cu.cuGraphAddMemcpyNode(made->copy_nodes + n, made->graph, made->front,
                                                       made->front_count, &params, device->context),
                       "cuGraphAddMemcpyNode"));
        *made->front = made->copy_nodes[n];
        made->front_count = 1;
    }
    return CUTS_OK;
}

/* Whether a kernel may be placed before its only predecessor ends, as its code waits for that end. */
static int may_begin_early(const sequence *sequence, uint64_t number, uint64_t before) {
    const cuda_device *device = sequence->device;
    return device->cu.cuGraphAddDependencies_v2 && device->capability >= MIN_EARLY_CAPABILITY &&
           sequence->file->launch_count <= MAX_EARLY_NODES && is_kernel(kernel_of(sequence, number)) &&
           kernel_of(sequence, number)->waits && is_kernel(kernel_of(sequence, before));
}

static cuts_status add_early_edge(const recording *made, cuda_node to) {
    cuda_edge edge = {.from_port = CUDA_PORT_PROGRAMMATIC, .type = CUDA_EDGE_PROGRAMMATIC};
    const cuda_device *device = made->sequence->device;
    return check_cuda(device, device->cu.cuGraphAddDependencies_v2(made->graph, made->front, &to, &edge, 1),
                      "cuGraphAddDependencies");
}

/* Lets the L2 cache evict first the bytes of an argument that no other launch reads. */
static cuts_status set_window(const recording *made, uint64_t number) {
    const plan_file *file = made->sequence->file;
    const launch_record *launch = file->launches + number;
    const cuda_device *device = made->sequence->device;
    if (launch->evict_first == NO_NUMBER || !device->window_bytes) return CUTS_OK;
    const address_record *address = file->addresses + launch->first_address + launch->evict_first;
    uint64_t limit = (uint64_t)device->window_bytes, nbytes = launch->evict_first_bytes;
    cuda_attribute window = {
        .base = (void *)(uintptr_t)(made->blocks[address->block] + address->offset),
        .nbytes = nbytes < limit ? nbytes : limit,
        .hit_ratio = 1.0f,
        .hit = CUDA_PROPERTY_STREAMING,
    };
    device->cu.cuGraphKernelNodeSetAttribute(made->launch_nodes[number], CUDA_ATTRIBUTE_WINDOW, &window);
    return CUTS_OK; /* a launch without the policy is only slower */
}

static cuts_status add_kernel(recording *made, uint64_t number, int is_early) {
    sequence *sequence = made->sequence;
    const launch_record *launch = sequence->file->launches + number;
    cuda_node *node = made->launch_nodes + number;
    TRY(fill_parameters(sequence, launch, made->blocks));
    cuda_kernel_params params = launch_params(sequence, launch);
    cuda_result code = sequence->device->cu.cuGraphAddKernelNode(node, made->graph, made->front,
                                                                 is_early ? 0 : made->front_count, &params);
    TRY(check_cuda(sequence->device, code, text_of(sequence->file, kernel_of(sequence, number)->name)));
    if (is_early) TRY(add_early_edge(made, *node));
    return set_window(made, number);
}

/* Adds the caller's graph in place of a launch, or a node of nothing for a kernel without blocks. */
static cuts_status add_other(recording *made, uint64_t number) {
    const cuda_device *device = made->sequence->device;
    cuda_graph child = made->sequence->children[number];
    cuda_node *node = made->launch_nodes + number;
    if (kernel_of(made->sequence, number))
        return check_cuda(device,
                          device->cu.cuGraphAddEmptyNode(node, made->graph, made->front, made->front_count),
                          "cuGraphAddEmptyNode");
    if (!child)
        return fail(CUTS_ERROR_ARGUMENT, "launch %llu is a graph of the caller's: cuts_session_set_graph gave none",
                    (unsigned long long)number);
    return check_cuda(device,
                      device->cu.cuGraphAddChildGraphNode(node, made->graph, made->front, made->front_count, child),
                      "cuGraphAddChildGraphNode");
}

/* Adds a launch after its dependencies, or after what precedes all launches. */
static cuts_status add_launch(recording *made, uint64_t number) {
    const sequence *sequence = made->sequence;
    const launch_record *launch = sequence->file->launches + number;
    int is_in_row = launch->wait_count == NO_NUMBER;
    uint64_t before = number - 1;
    made->front_count = is_in_row ? (number ? 1 : 0) : launch->wait_count;
    for (size_t n = 0; n < made->front_count; n++) {
        if (!is_in_row) before = (uint64_t)sequence->file->numbers[launch->first_wait + n];
        made->front[n] = made->launch_nodes[before];
    }
    int is_early = made->front_count == 1 && may_begin_early(sequence, number, before);
    if (!made->front_count) follow_first(made);
    return is_kernel(kernel_of(sequence, number)) ? add_kernel(made, number, is_early) : add_other(made, number);
}

/* Lets the front be the launches that no other waits for: the copies after the launches follow them. */
static cuts_status follow_last_launches(recording *made) {
    const plan_file *file = made->sequence->file;
    uint8_t *is_waited = calloc(file->launch_count + 1, 1);
    if (!is_waited) return fail(CUTS_ERROR_MEMORY, "too little memory to record a plan");
    for (uint64_t n = 0; n < file->launch_count; n++) {
        const launch_record *launch = file->launches + n;
        if (launch->wait_count == NO_NUMBER && n) is_waited[n - 1] = 1;
        for (uint32_t w = 0; launch->wait_count != NO_NUMBER && w < launch->wait_count; w++)
            is_waited[file->numbers[launch->first_wait + w]] = 1;
    }
    made->front_count = 0;
    for (uint64_t n = 0; n < file->launch_count; n++)
        if (!is_waited[n]) made->front[made->front_count++] = made->launch_nodes[n];
    free(is_waited);
    if (!made->front_count) follow_first(made);
    return CUTS_OK;
}

static cuts_status add_nodes(recording *made) {
    follow_first(made);
    TRY(add_copies(made, 0));
    memcpy(made->first, made->front, made->front_count * sizeof *made->first);
    made->first_count = made->front_count;
    for (uint64_t n = 0; n < made->sequence->file->launch_count; n++) TRY(add_launch(made, n));
    TRY(follow_last_launches(made));
    return add_copies(made, 1);
}

/* The largest number of launches that one waits for. */
static uint64_t max_waits(const plan_file *file) {
    uint64_t most = file->launch_count;
    for (uint64_t n = 0; n < file->launch_count; n++)
        if (file->launches[n].wait_count != NO_NUMBER && file->launches[n].wait_count > most)
            most = file->launches[n].wait_count;
    return most;
}

/* Adds everything to a graph after some nodes, with room for the numbers of this graph. */
static cuts_status add_after(recording *made, const cuda_node *nodes, size_t count) {
    made->front = calloc(max_waits(made->sequence->file) + count + 1, sizeof *made->front);
    made->first = calloc(count + 1, sizeof *made->first);
    if (!made->front || !made->first) return fail(CUTS_ERROR_MEMORY, "too little memory to record a plan");
    if (count) memcpy(made->first, nodes, count * sizeof *made->first);
    made->first_count = count;
    return add_nodes(made);
}

static cuts_status record(sequence *sequence, const device_memory *blocks) {
    const cuda_device *device = sequence->device;
    TRY(check_cuda(device, device->cu.cuGraphCreate(&sequence->graph, 0), "cuGraphCreate"));
    recording made = {.sequence = sequence,
                      .blocks = blocks,
                      .graph = sequence->graph,
                      .copy_nodes = sequence->copy_nodes,
                      .launch_nodes = sequence->launch_nodes};
    cuts_status status = add_after(&made, NULL, 0);
    free(made.front);
    free(made.first);
    TRY(status);
    return check_cuda(device, device->cu.cuGraphInstantiateWithFlags(&sequence->executable, sequence->graph, 0),
                      "cuGraphInstantiate");
}

/* Removes a recording that failed half-way, so that the next run begins anew. */
cuts_status record_graph(sequence *sequence, const device_memory *blocks) {
    cuts_status status = record(sequence, blocks);
    if (status != CUTS_OK && sequence->graph) {
        sequence->device->cu.cuGraphDestroy(sequence->graph);
        sequence->graph = NULL;
    }
    return status;
}

/* Adds everything to the graph of a recording after its last nodes, and lets what follows be after ours. */
static cuts_status add_to_capture(recording *made, cuda_stream stream, const cuda_node *nodes, size_t count) {
    const cuda_device *device = made->sequence->device;
    TRY(add_after(made, nodes, count));
    cuda_edge *edges = calloc(made->front_count + 1, sizeof *edges);
    if (!edges) return fail(CUTS_ERROR_MEMORY, "too little memory to record a plan");
    cuda_result code = device->cu.cuStreamUpdateCaptureDependencies_v2(stream, made->front, edges, made->front_count,
                                                                       CUDA_SET_DEPENDENCIES);
    free(edges);
    return check_cuda(device, code, "cuStreamUpdateCaptureDependencies");
}

static cuts_status extend(recording *made, cuda_stream stream) {
    const cuda_device *device = made->sequence->device;
    const plan_file *file = made->sequence->file;
    const cuda_node *nodes = NULL;
    const cuda_edge *edges = NULL;
    size_t count = 0;
    int state;
    made->copy_nodes = calloc(file->copy_count + 1, sizeof *made->copy_nodes);
    made->launch_nodes = calloc(file->launch_count + 1, sizeof *made->launch_nodes);
    if (!made->copy_nodes || !made->launch_nodes) return fail(CUTS_ERROR_MEMORY, "too little memory to record a plan");
    TRY(check_cuda(
        device, device->cu.cuStreamGetCaptureInfo_v3(stream, &state, NULL, &made->graph, &nodes, &edges, &count),
        "cuStreamGetCaptureInfo"));
    return add_to_capture(made, stream, nodes, count);
}

cuts_status extend_capture(sequence *sequence, const device_memory *blocks, cuda_stream stream) {
    const plan_file *file = sequence->file;
    for (uint64_t n = 0; n < file->tensor_count; n++)
        if (file->tensors[n].partner != NO_NUMBER)
            return fail(CUTS_ERROR_ARGUMENT, "state '%s' takes turns between two blocks: a recording cannot repeat it",
                        text_of(file, file->tensors[n].name));
    if (!sequence->device->cu.cuStreamGetCaptureInfo_v3 || !sequence->device->cu.cuStreamUpdateCaptureDependencies_v2)
        return launch_on_stream(sequence, blocks, stream); /* without edges of ours */
    recording made = {.sequence = sequence, .blocks = blocks};
    cuts_status status = extend(&made, stream);
    free(made.copy_nodes);
    free(made.launch_nodes);
    free(made.front);
    free(made.first);
    return status;
}
