/* Runs packed plans of cuts: `cuts export PLAN --as file` writes them.
 *
 * The library needs the C library and the driver of the plan's device only, which it opens when a plan is opened:
 * libcuda for CUDA, libOpenCL for OpenCL. It has a stable interface: structs of options begin with their size, and
 * later versions add functions and fields at the end.
 */
#ifndef CUTS_RUN_H
#define CUTS_RUN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define CUTS_API __attribute__((visibility("default")))
#else
#define CUTS_API
#endif

/** Version of this interface: major * 1000 + minor. A library of the same major number serves the header. */
#define CUTS_RUN_VERSION 1002

/** Result of a call. All but `CUTS_OK` are errors, with a text in `cuts_last_error`. */
typedef enum cuts_status {
    CUTS_OK = 0,
    CUTS_ERROR_ARGUMENT = 1,     /* a null pointer, or a number out of range */
    CUTS_ERROR_FILE = 2,         /* the file cannot be read */
    CUTS_ERROR_FORMAT = 3,       /* the file is no packed plan, or contradicts itself */
    CUTS_ERROR_VERSION = 4,      /* the format has another version */
    CUTS_ERROR_DIGEST = 5,       /* the content differs from its digest */
    CUTS_ERROR_ARCHITECTURE = 6, /* the plan is for another kind of device */
    CUTS_ERROR_DRIVER = 7,       /* the driver is missing, or a call of it failed */
    CUTS_ERROR_MEMORY = 8,       /* too little memory on the host or on the device */
    CUTS_ERROR_TENSOR = 9        /* a tensor has another type, shape, place or size than the plan's */
} cuts_status;

/** Role of a tensor: given by the caller, written for the caller, or kept by a session from run to run. */
typedef enum cuts_role { CUTS_INPUT = 0, CUTS_OUTPUT = 1, CUTS_STATE = 2 } cuts_role;

/** Device of a tensor, with DLPack's numbers. CUDA plans take device memory of their GPU. OpenCL plans take host memory
 * on devices that share it, such as CPUs, and `cl_mem` objects of their context elsewhere. */
typedef struct cuts_device {
    int32_t type; /* 1: host memory, 2: CUDA, 4: OpenCL */
    int32_t ordinal;
} cuts_device;

/** Element type with DLPack's numbers: code 0 signed, 1 unsigned, 2 float, 4 bfloat, 6 bool, 10 float8_e4m3fn, 12
 * float8_e5m2. */
typedef struct cuts_dtype {
    uint8_t code;
    uint8_t bits;
    uint16_t lanes;
} cuts_dtype;

/** Tensor in memory of a caller: the struct `DLTensor` of DLPack, field by field, so that a pointer to one may be cast
 * to the other. `strides` counts elements and may be null for a dense tensor; plans take dense tensors. */
typedef struct cuts_tensor {
    void *data; /* a host or device address that is a multiple of 16 with `byte_offset`, or a `cl_mem` */
    cuts_device device;
    int32_t ndim;
    cuts_dtype dtype;
    int64_t *shape;
    int64_t *strides;
    uint64_t byte_offset;
} cuts_tensor;

/** Description of a plan's tensor. It is valid until the plan is closed. */
typedef struct cuts_tensor_info {
    const char *name;
    cuts_role role;
    cuts_dtype dtype;
    int32_t ndim;
    const int64_t *shape;
    uint64_t nbytes;
} cuts_tensor_info;

/** Description of a plan. It is valid until the plan is closed. */
typedef struct cuts_plan_info {
    const char *name;
    const char *target;  /* name of the target that the plan was compiled for */
    const char *dialect; /* "cuda" or "opencl" */
    uint32_t inputs, outputs, states;
    uint32_t kernels, launches;
    uint64_t constant_bytes; /* device memory of a plan */
    uint64_t session_bytes;  /* device memory of each session */
} cuts_plan_info;

/** Choice of a device. `cuts_options_default` fills it; a null pointer in its place means the same. */
typedef struct cuts_options {
    size_t size;            /* bytes of this struct, as the caller's compiler has it */
    int32_t ordinal;        /* number of the device; -1 opens the file alone, to describe it */
    const char *library;    /* path of the driver's library in place of the system's */
    const char *platform;   /* OpenCL: part of the name or version of a platform */
    void *context;          /* OpenCL: the caller's `cl_context`, whose memory a plan then takes */
    void *device;           /* OpenCL: the `cl_device_id` of that context */
    void *const *functions; /* CUDA: by kernel, the caller's `CUfunction` where the file has no program */
} cuts_options;

typedef struct cuts_plan cuts_plan;
typedef struct cuts_session cuts_session;

/** Returns the version of the library, as `CUTS_RUN_VERSION` is that of the header. */
CUTS_API uint32_t cuts_run_version(void);

/** Returns the name of a status, such as "CUTS_ERROR_DIGEST". */
CUTS_API const char *cuts_status_name(cuts_status status);

/** Returns the text of the last error in this thread; empty where there was none. */
CUTS_API const char *cuts_last_error(void);

/** Fills options with the first device and the system's driver. */
CUTS_API void cuts_options_default(cuts_options *options);

/** Opens a packed plan: checks its digest, version and device, loads its kernels, uploads its constants. */
CUTS_API cuts_status cuts_plan_open(const char *path, const cuts_options *options, cuts_plan **plan);

/** Opens a packed plan in memory, which is copied. */
CUTS_API cuts_status cuts_plan_open_memory(const void *bytes, size_t nbytes, const cuts_options *options,
                                           cuts_plan **plan);

/** Closes a plan; its memory is freed after its last session. A null pointer is allowed. */
CUTS_API void cuts_plan_close(cuts_plan *plan);

/** Describes a plan. */
CUTS_API cuts_status cuts_plan_describe(const cuts_plan *plan, cuts_plan_info *info);

/** Describes tensor number `index` of a role: the order of inputs and outputs is that of a run. */
CUTS_API cuts_status cuts_plan_tensor(const cuts_plan *plan, cuts_role role, uint32_t index, cuts_tensor_info *info);

/** Creates a session: memory for the values of one run, and state with its initial values. Sessions of a plan may run
 * at the same time; runs of one session follow one another. Any thread may call any session. */
CUTS_API cuts_status cuts_session_create(cuts_plan *plan, cuts_session **session);

/** Frees a session's memory, where it has some after waiting for its runs. A null pointer is allowed. */
CUTS_API void cuts_session_destroy(cuts_session *session);

/** Runs a plan on tensors of the caller, in the order of `cuts_plan_tensor`. Kernels read inputs and write outputs
 * where they lie. On CUDA the run is ordered on `stream`, a `CUstream` or null for the default stream, and memory must
 * stay until it has ended. Where the caller records that stream, the launches become part of the recording, unless
 * state takes turns between two blocks. On OpenCL `stream` is a `cl_command_queue` or null for the session's own, and
 * the run has ended when the call returns. */
CUTS_API cuts_status cuts_session_run(cuts_session *session, const cuts_tensor *inputs, uint32_t input_count,
                                      const cuts_tensor *outputs, uint32_t output_count, void *stream);

/** Runs a plan like `cuts_session_run` on dense tensors given by their addresses and bytes alone. */
CUTS_API cuts_status cuts_session_run_pointers(cuts_session *session, void *const *inputs, const uint64_t *input_bytes,
                                               uint32_t input_count, void *const *outputs, const uint64_t *output_bytes,
                                               uint32_t output_count, void *stream);

/** Runs a plan on dense tensors in host memory, with any alignment, and returns when the outputs are there. Devices that
 * share the host's memory use it where it lies; for others the session has device memory, and copies. */
CUTS_API cuts_status cuts_session_run_host(cuts_session *session, const void *const *inputs,
                                           const uint64_t *input_bytes, uint32_t input_count, void *const *outputs,
                                           const uint64_t *output_bytes, uint32_t output_count);

/** Lets a graph of the caller, a `CUgraph` such as a recorded call of a library, take the place of launch `index` of a
 * CUDA plan, where the file has no kernel for it. It must stay until the session ends or has another one. */
CUTS_API cuts_status cuts_session_set_graph(cuts_session *session, uint32_t index, void *graph);

/** Waits for all runs of a session. */
CUTS_API cuts_status cuts_session_synchronize(cuts_session *session);

/** Copies state number `index` to host memory of `nbytes` bytes, after the session's runs. */
CUTS_API cuts_status cuts_session_read_state(cuts_session *session, uint32_t index, void *target, uint64_t nbytes);

/** Replaces state number `index` from host memory, after the session's runs. */
CUTS_API cuts_status cuts_session_write_state(cuts_session *session, uint32_t index, const void *source,
                                              uint64_t nbytes);

/** Gives all state its initial values, after the session's runs. */
CUTS_API cuts_status cuts_session_reset_state(cuts_session *session);

#ifdef __cplusplus
}
#endif
#endif
