/* Opened plan: its file, its device, its constants. */
#ifndef CUTS_PLAN_H
#define CUTS_PLAN_H

#include <stdatomic.h>

#include "driver.h"

struct cuts_plan {
    plan_file file;
    device *device;           /* null where the plan was opened without one */
    device_memory *constants; /* by block; 0 for other blocks */
    atomic_uint owner_count;  /* the caller, until it closes the plan, and each session */
};

/* Returns the calls of the plan's driver. */
const driver_calls *calls_of(const cuts_plan *plan);

/* Uploads the initial bytes of blocks of a kind that lie within a range of one block, or of all blocks. */
cuts_status upload_images(const cuts_plan *plan, block_kind kind, const device_memory *blocks,
                          const tensor_record *within);

/* Ends an ownership, and frees the plan after the last. */
void release_plan(cuts_plan *plan);

#endif
