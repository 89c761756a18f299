/* A session's memory and its launch, for the ways to run it. */
#ifndef CUTS_SESSION_H
#define CUTS_SESSION_H

#include <pthread.h>

#include "plan.h"

enum { ALIGNMENT = 16 }; /* of the caller's memory: the widest load of a kernel */

struct cuts_session {
    cuts_plan *plan;
    pthread_mutex_t mutex; /* held while a run is launched */
    sequence *sequence;
    device_memory *blocks; /* by block: constants of the plan, memory of the session, adopted memory of the caller */
    void **callers;        /* by block: the address that a caller gave in the last run */
    uint8_t *is_moved;     /* by block: whether it differs from the last launch */
    device_memory *copies; /* by block: device memory for a caller's host memory, or null */
};

/* Takes a caller's memory as the block of a tensor, unless it was there in the last run. */
cuts_status bind_memory(cuts_session *session, const tensor_record *tensor, const cuts_device *place, void *data);

/* Checks the number of tensors of a role, and the bytes of one. */
cuts_status check_count(const cuts_session *session, cuts_role role, uint32_t count, const void *list);
cuts_status check_bytes(const cuts_session *session, const tensor_record *tensor, uint64_t nbytes);

/* Launches a locked session over its blocks. */
cuts_status launch_session(cuts_session *session, void *stream);

#endif
