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
    cuda_node *waits;         /* predecessors of one node */
    cuda_graph graph;
    cuda_executable executable;
    cuda_stream last_stream; /* of a sequence that is too long for a graph */
    int has_run;
};

/* Whether a launch of a kernel has no blocks. */
int is_empty(const kernel_record *kernel);

const kernel_record *kernel_of(const sequence *sequence, uint64_t launch);

/* Writes the parameters of a launch over blocks of memory. */
cuts_status fill_parameters(sequence *sequence, const launch_record *launch, const device_memory *blocks);

cuda_kernel_params launch_params(const sequence *sequence, const launch_record *launch);
cuda_copy_params copy_params(const copy_record *copy, const device_memory *blocks);

/* Records the launches and copies over blocks of memory. */
cuts_status record_graph(sequence *sequence, const device_memory *blocks);

/* Whether a block has moved, and the update of nodes that touch one. */
int has_moved(const plan_file *file, const uint8_t *is_moved);
cuts_status update_graph(sequence *sequence, const device_memory *blocks, const uint8_t *is_moved);

#endif
