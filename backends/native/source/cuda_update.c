/* Updates of a recorded graph: nodes that touch memory which has moved, and graphs of the caller. */
#include <string.h>

#include "cuda_sequence.h"
#include "status.h"

/* Lets a graph of the caller take the place of a launch: in the next recording, and in the present one. */
cuts_status set_child(sequence *sequence, uint64_t number, void *graph) {
    const cuda_device *device = sequence->device;
    sequence->children[number] = graph;
    if (!sequence->executable) return CUTS_OK;
    TRY(enter_context(device));
    cuts_status status =
        check_cuda(device,
                   device->cu.cuGraphExecChildGraphNodeSetParams(sequence->executable, sequence->launch_nodes[number],
                                                                 graph),
                   "cuGraphExecChildGraphNodeSetParams");
    leave_context(device);
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
    if (!memchr(is_moved, 1, file->block_count)) return CUTS_OK;
    for (uint64_t n = 0; n < file->launch_count; n++)
        if (is_kernel(kernel_of(sequence, n)) && touches_moved(sequence, n, is_moved))
            TRY(update_launch(sequence, n, blocks));
    for (uint64_t n = 0; n < file->copy_count; n++)
        if (is_moved[file->copies[n].source.block] || is_moved[file->copies[n].target.block])
            TRY(update_copy(sequence, n, blocks));
    return CUTS_OK;
}
