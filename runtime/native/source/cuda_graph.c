/* The graph of a session's launches.
 *
 * Nodes that touch memory which has moved are updated before a launch. A graph may be launched on several streams: the
 * driver begins one launch of it when the previous one has ended.
 */
#include <stdlib.h>

#include "cuda_sequence.h"
#include "status.h"

enum {
    MAX_EARLY_NODES = 4096, /* of a graph whose kernels are placed before their predecessors end */
    MIN_EARLY_CAPABILITY = 90,
};

/* Adds the copies before the launches or after them, one after another; `last` becomes the last of them. */
static cuts_status add_copies(sequence *sequence, uint32_t after, const device_memory *blocks, cuda_node *waits,
                              size_t wait_count, cuda_node *last) {
    const cuda_device *device = sequence->device;
    for (uint64_t n = 0; n < sequence->file->copy_count; n++) {
        if (sequence->file->copies[n].after != after) continue;
        cuda_copy_params params = copy_params(sequence->file->copies + n, blocks);
        cuda_node *node = sequence->copy_nodes + n;
        TRY(check_cuda(
            device, device->cu.cuGraphAddMemcpyNode(node, sequence->graph, waits, wait_count, &params, device->context),
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
    cuda_result code =
        cu->cuGraphAddKernelNode(node, sequence->graph, sequence->waits, is_early ? 0 : wait_count, &params);
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
cuts_status record_graph(sequence *sequence, const device_memory *blocks) {
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

cuts_status update_graph(sequence *sequence, const device_memory *blocks, const uint8_t *is_moved) {
    const plan_file *file = sequence->file;
    for (uint64_t n = 0; n < file->launch_count; n++)
        if (touches_moved(sequence, n, is_moved)) TRY(update_launch(sequence, n, blocks));
    for (uint64_t n = 0; n < file->copy_count; n++)
        if (is_moved[file->copies[n].source.block] || is_moved[file->copies[n].target.block])
            TRY(update_copy(sequence, n, blocks));
    return CUTS_OK;
}

int has_moved(const plan_file *file, const uint8_t *is_moved) {
    for (uint64_t n = 0; n < file->block_count; n++)
        if (is_moved[n]) return 1;
    return 0;
}
