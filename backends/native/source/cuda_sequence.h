/* Launches of a session on CUDA, and their parameters. */
#ifndef CUTS_CUDA_SEQUENCE_H
#define CUTS_CUDA_SEQUENCE_H

#include "cuda_device.h"

enum { SLOT_ALIGNMENT = 64 };

/* A parameter of a kernel: an address, or a tensor map. */
typedef struct parameter_slot {
    _Alignas(SLOT_ALIGNMENT) char bytes[CUDA_MAP_BYTES];
} parameter_slot;

struct sequence {
    cuda_device *device;
    const plan_file *file;
    cuda_function *functions; /* by kernel */
    parameter_slot *slots;    /* parameters of one launch, which the driver copies */
    void **parameters;        /* addresses of the slots */
    cuda_node *copy_nodes;    /* by copy */
    cuda_node *launch_nodes;  /* by launch */
    cuda_graph *children;     /* by launch: the graph of the caller that takes its place, or null */
    cuda_graph graph;
    cuda_executable executable;
    cuda_stream last_stream; /* of a sequence that is too long for a graph */
    int has_run;
};

/* The kernel of a launch; null where a graph of the caller takes its place. */
const kernel_record *kernel_of(const sequence *sequence, uint64_t launch);

/* Whether a launch is one of a kernel that has blocks. */
int is_kernel(const kernel_record *kernel);

/* Writes the parameters of a launch over blocks of memory. */
cuts_status fill_parameters(sequence *sequence, const launch_record *launch, const device_memory *blocks);

cuda_kernel_params launch_params(const sequence *sequence, const launch_record *launch);
cuda_copy_params copy_params(const copy_record *copy, const device_memory *blocks);

/* Records the launches and copies over blocks of memory. */
cuts_status record_graph(sequence *sequence, const device_memory *blocks);

/* Adds the launches and copies to what a caller records on a stream. */
cuts_status extend_capture(sequence *sequence, const device_memory *blocks, cuda_stream stream);

/* Launches everything on a stream, one by one. */
cuts_status launch_on_stream(sequence *sequence, const device_memory *blocks, cuda_stream stream);

/* Updates the nodes that touch a block which has moved. */
cuts_status update_graph(sequence *sequence, const device_memory *blocks, const uint8_t *is_moved);

#endif
