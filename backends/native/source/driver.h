/* Driver of a plan's device: one table of calls for CUDA and one for OpenCL. */
#ifndef CUTS_DRIVER_H
#define CUTS_DRIVER_H

#include "plan_file.h"

/* Memory of a device: its address on CUDA, its `cl_mem` on OpenCL. */
typedef uint64_t device_memory;

/* An opened device with the programs of one plan, and the launches of one session. Each driver has its own structs,
 * which begin with these. */
typedef struct device {
    const struct driver_calls *calls;
} device;

typedef struct sequence sequence;

/* DLPack's numbers of devices. */
enum { HOST_DEVICE = 1, CUDA_DEVICE = 2, OPENCL_DEVICE = 4 };

typedef struct driver_calls {
    int32_t device_type; /* of memory that `allocate` returns */
    int (*shares_host_memory)(const device *device);

    /* Opens a device that fits a plan; `load` brings the plan's programs there. */
    cuts_status (*open)(const cuts_options *options, const plan_file *file, device **opened);
    cuts_status (*load)(device *device, const plan_file *file);
    void (*close)(device *device);

    /* Memory of zeros. */
    cuts_status (*allocate)(device *device, uint64_t nbytes, device_memory *memory);
    void (*release)(device *device, device_memory memory);

    /* Copies between the host and a device, complete on return. */
    cuts_status (*upload)(device *device, device_memory target, uint64_t offset, const void *source, uint64_t nbytes);
    cuts_status (*download)(device *device, void *target, device_memory source, uint64_t offset, uint64_t nbytes);

    /* Memory of a caller, in use until it is disowned. */
    cuts_status (*adopt)(device *device, const cuts_device *place, void *data, uint64_t nbytes, device_memory *memory);
    void (*disown)(device *device, device_memory memory);

    cuts_status (*prepare)(device *device, const plan_file *file, sequence **prepared);

    /* Launches everything over blocks of memory. `is_moved` has a flag for each block that differs from the last
     * launch; a launch clears those that it has followed. */
    cuts_status (*launch)(sequence *sequence, const device_memory *blocks, uint8_t *is_moved, void *stream);

    /* Lets a graph of the caller take the place of a launch; null where a device has none. */
    cuts_status (*set_child)(sequence *sequence, uint64_t launch, void *graph);
    cuts_status (*wait)(sequence *sequence);
    void (*discard)(sequence *sequence);
} driver_calls;

extern const driver_calls CUDA_DRIVER, OPENCL_DRIVER;

/* Fills a struct of functions by their names from a library.
 *
 * `names` and `functions` have `count` elements; those after the first `required` stay null where they are missing. */
cuts_status load_functions(const char *path, const char *const *names, void **functions, int required, int count,
                           void **library);

#endif
