/* A packed plan in memory, read in place.
 *
 * The structs are the records of its sections, as backends/native/records.py writes them. `plan_file_open` checks every
 * number of a file once, so that later code may use it without a check.
 */
#ifndef CUTS_PLAN_FILE_H
#define CUTS_PLAN_FILE_H

#include "cuts_run.h"
#include "sha256.h"

enum { PLAN_FORMAT_VERSION = 2, SECTION_COUNT = 14, MAX_MAP_RANK = 5, MAX_WALKED = 3, MAX_RANK = 64 };

/* An absent number: no argument, or dependencies that are just the launch before. */
#define NO_NUMBER UINT32_MAX

typedef enum dialect { DIALECT_OPENCL = 1, DIALECT_CUDA = 2 } dialect;
typedef enum block_kind { BLOCK_CONSTANTS = 0, BLOCK_SESSION = 1, BLOCK_INPUT = 2, BLOCK_OUTPUT = 3 } block_kind;

/* A text: its first byte in the section of texts, and its length without the zero byte after it. */
typedef struct text_ref {
    uint32_t first, length;
} text_ref;

typedef struct info_record {
    text_ref name, cuts, target, options;
    uint32_t dialect, capability; /* capability: 10 * major + minor, of CUDA */
    uint64_t reserved;
} info_record;

typedef struct block_record {
    uint32_t kind, reserved;
    uint64_t nbytes;
} block_record;

typedef struct tensor_record {
    text_ref name;
    uint32_t role, block;
    cuts_dtype dtype;
    uint32_t rank;
    uint32_t partner; /* of state: the block of its next value, which takes the place of its own; or none */
    uint32_t reserved;
    uint64_t first_extent, offset, nbytes;
} tensor_record;

/* Initial bytes of a part of a block. */
typedef struct image_record {
    uint32_t block, reserved;
    uint64_t offset, nbytes, data;
} image_record;

typedef struct program_record {
    uint64_t data, nbytes;
} program_record;

typedef struct kernel_record {
    text_ref name;
    uint32_t program; /* none: a function of the caller */
    uint32_t first_argument, argument_count;
    uint32_t waits; /* whether its code begins with a wait for earlier launches */
    uint32_t grid[3], block[3];
    uint32_t static_shared, dynamic_shared;
} kernel_record;

typedef struct argument_record {
    uint32_t element_bytes, map;
} argument_record;

/* Tensor map; one that walks pixels has `walked` dims of a place. */
typedef struct map_record {
    uint32_t type, rank, swizzle, promotion;
    uint64_t extents[MAX_MAP_RANK], strides[MAX_MAP_RANK - 1];
    uint32_t box[MAX_MAP_RANK], walked;
    int32_t starts[MAX_WALKED], ends[MAX_WALKED];
    uint32_t steps[MAX_WALKED], reserved;
} map_record;

typedef struct launch_record {
    uint32_t kernel; /* none: a graph of the caller */
    uint32_t first_address, first_wait, wait_count, evict_first, reserved;
    uint64_t evict_first_bytes;
} launch_record;

typedef struct address_record {
    uint32_t block, reserved;
    uint64_t offset;
} address_record;

/* Copy of `height` rows of `width` bytes, before the launches or after them. */
typedef struct copy_record {
    uint32_t after, reserved;
    address_record source, target;
    uint64_t width, height, source_pitch, target_pitch;
} copy_record;

typedef struct plan_file {
    const uint8_t *bytes;
    size_t nbytes;
    int is_mapped; /* whether `bytes` is a mapping of a file, not allocated memory */
    const info_record *info;
    const block_record *blocks;
    const tensor_record *tensors; /* inputs, outputs, state */
    const image_record *images;
    const program_record *programs;
    const kernel_record *kernels;
    const argument_record *arguments;
    const map_record *maps;
    const launch_record *launches;
    const address_record *addresses;
    const copy_record *copies;
    const int64_t *numbers;
    const char *texts;
    const uint8_t *data;
    uint64_t info_count, block_count, tensor_count, image_count, program_count, kernel_count, argument_count, map_count,
        launch_count, address_count, copy_count, number_count, text_bytes, data_bytes;
    uint32_t role_counts[3];
} plan_file;

/* Maps a file and checks everything but the digest of one with right records. */
cuts_status plan_file_open(const char *path, plan_file *file);

/* Copies a file in memory and checks it alike. */
cuts_status plan_file_open_memory(const void *bytes, size_t nbytes, plan_file *file);

/* Reads and checks everything but the digest, of memory that is a multiple of 8 and stays the caller's. */
cuts_status plan_file_read(const void *bytes, size_t nbytes, plan_file *file);

/* Computes the digest of a plan, and compares it with that in its header. */
void compute_plan_digest(const void *bytes, size_t nbytes, uint8_t found[SHA256_BYTES]);
cuts_status check_plan_digest(const uint8_t found[SHA256_BYTES], const void *bytes);

void plan_file_close(plan_file *file);

/* Checks what records refer to. */
cuts_status check_plan_records(plan_file *file);

/* Returns the tensor number `index` of a role; null where there is none. */
const tensor_record *find_tensor(const plan_file *file, cuts_role role, uint32_t index);

static inline const char *text_of(const plan_file *file, text_ref text) {
    return file->texts + text.first;
}

#endif
