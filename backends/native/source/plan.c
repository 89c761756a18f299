#include "plan.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "status.h"

const driver_calls *calls_of(const cuts_plan *plan) {
    return plan->device->calls;
}

void cuts_options_default(cuts_options *options) {
    if (options) *options = (cuts_options){.size = sizeof *options};
}

/* Copies options of any version of the header: fields beyond the caller's struct keep their defaults. */
static cuts_status read_options(const cuts_options *given, cuts_options *options) {
    cuts_options_default(options);
    if (!given) return CUTS_OK;
    if (given->size < offsetof(cuts_options, library))
        return fail(CUTS_ERROR_ARGUMENT, "cuts_options.size is %zu: fill the options with cuts_options_default",
                    given->size);
    memcpy(options, given, given->size < sizeof *options ? given->size : sizeof *options);
    return CUTS_OK;
}

cuts_status upload_images(const cuts_plan *plan, block_kind kind, const device_memory *blocks,
                          const tensor_record *within) {
    const plan_file *file = &plan->file;
    for (uint64_t n = 0; n < file->image_count; n++) {
        const image_record *image = file->images + n;
        int is_inside = !within || (image->block == within->block && image->offset >= within->offset &&
                                    image->offset - within->offset < within->nbytes);
        if (file->blocks[image->block].kind == kind && is_inside)
            TRY(calls_of(plan)->upload(plan->device, blocks[image->block], image->offset, file->data + image->data,
                                       image->nbytes));
    }
    return CUTS_OK;
}

static cuts_status load_constants(cuts_plan *plan) {
    const plan_file *file = &plan->file;
    plan->constants = calloc(file->block_count + 1, sizeof *plan->constants);
    if (!plan->constants) return fail(CUTS_ERROR_MEMORY, "too little memory to open a plan");
    for (uint64_t n = 0; n < file->block_count; n++)
        if (file->blocks[n].kind == BLOCK_CONSTANTS)
            TRY(calls_of(plan)->allocate(plan->device, file->blocks[n].nbytes, plan->constants + n));
    return upload_images(plan, BLOCK_CONSTANTS, plan->constants, NULL);
}

static cuts_status open_device(cuts_plan *plan, const cuts_options *options) {
    if (options->ordinal == -1) return CUTS_OK;
    if (options->ordinal < -1) return fail(CUTS_ERROR_ARGUMENT, "there is no device %d", (int)options->ordinal);
    const driver_calls *calls = plan->file.info->dialect == DIALECT_CUDA ? &CUDA_DRIVER : &OPENCL_DRIVER;
    return calls->open(options, &plan->file, &plan->device);
}

typedef struct digest_work {
    const plan_file *file;
    uint8_t found[SHA256_BYTES];
} digest_work;

static void *compute_digest(void *data) {
    digest_work *work = data;
    compute_plan_digest(work->file->bytes, work->file->nbytes, work->found);
    return NULL;
}

/* Opens the device while a thread reads the file: a GPU's context takes as long as the digest of some hundred MB. Code
 * of the file is loaded when its digest is known to be right. */
static cuts_status open_and_check(cuts_plan *plan, const cuts_options *options) {
    digest_work work = {.file = &plan->file};
    pthread_t thread;
    int is_alone = pthread_create(&thread, NULL, compute_digest, &work);
    cuts_status status = open_device(plan, options);
    if (is_alone)
        compute_digest(&work);
    else
        pthread_join(thread, NULL);
    TRY(check_plan_digest(work.found, plan->file.bytes));
    if (status != CUTS_OK || !plan->device) return status;
    TRY(calls_of(plan)->load(plan->device, &plan->file));
    return load_constants(plan);
}

/* Gives a caller a plan whose file is open, on its device. */
static cuts_status finish_opening(plan_file file, const cuts_options *options, cuts_plan **opened) {
    cuts_plan *plan = calloc(1, sizeof *plan);
    if (!plan) {
        plan_file_close(&file);
        return fail(CUTS_ERROR_MEMORY, "too little memory to open a plan");
    }
    plan->file = file;
    atomic_init(&plan->owner_count, 1);
    cuts_status status = open_and_check(plan, options);
    if (status == CUTS_OK)
        *opened = plan;
    else
        release_plan(plan);
    return status;
}

cuts_status cuts_plan_open(const char *path, const cuts_options *given, cuts_plan **plan) {
    cuts_options options;
    plan_file file;
    if (!path || !plan) return fail(CUTS_ERROR_ARGUMENT, "cuts_plan_open: expected a path and a place, found null");
    *plan = NULL;
    TRY(read_options(given, &options));
    TRY(plan_file_open(path, &file));
    return finish_opening(file, &options, plan);
}

cuts_status cuts_plan_open_memory(const void *bytes, size_t nbytes, const cuts_options *given, cuts_plan **plan) {
    cuts_options options;
    plan_file file;
    if (!bytes || !plan)
        return fail(CUTS_ERROR_ARGUMENT, "cuts_plan_open_memory: expected memory and a place, found null");
    *plan = NULL;
    TRY(read_options(given, &options));
    TRY(plan_file_open_memory(bytes, nbytes, &file));
    return finish_opening(file, &options, plan);
}

void release_plan(cuts_plan *plan) {
    if (atomic_fetch_sub(&plan->owner_count, 1) != 1) return;
    if (plan->device) {
        for (uint64_t n = 0; plan->constants && n < plan->file.block_count; n++)
            if (plan->constants[n]) calls_of(plan)->release(plan->device, plan->constants[n]);
        calls_of(plan)->close(plan->device);
    }
    free(plan->constants);
    plan_file_close(&plan->file);
    free(plan);
}

void cuts_plan_close(cuts_plan *plan) {
    if (plan) release_plan(plan);
}

static uint64_t bytes_of_kind(const plan_file *file, block_kind kind) {
    uint64_t sum = 0;
    for (uint64_t n = 0; n < file->block_count; n++) sum += file->blocks[n].kind == kind ? file->blocks[n].nbytes : 0;
    return sum;
}

cuts_status cuts_plan_describe(const cuts_plan *plan, cuts_plan_info *info) {
    if (!plan || !info) return fail(CUTS_ERROR_ARGUMENT, "cuts_plan_describe: expected a plan and a place, found null");
    const plan_file *file = &plan->file;
    *info = (cuts_plan_info){
        .name = text_of(file, file->info->name),
        .target = text_of(file, file->info->target),
        .dialect = file->info->dialect == DIALECT_CUDA ? "cuda" : "opencl",
        .inputs = file->role_counts[CUTS_INPUT],
        .outputs = file->role_counts[CUTS_OUTPUT],
        .states = file->role_counts[CUTS_STATE],
        .kernels = (uint32_t)file->kernel_count,
        .launches = (uint32_t)file->launch_count,
        .constant_bytes = bytes_of_kind(file, BLOCK_CONSTANTS),
        .session_bytes = bytes_of_kind(file, BLOCK_SESSION),
    };
    return CUTS_OK;
}

cuts_status cuts_plan_tensor(const cuts_plan *plan, cuts_role role, uint32_t index, cuts_tensor_info *info) {
    if (!plan || !info) return fail(CUTS_ERROR_ARGUMENT, "cuts_plan_tensor: expected a plan and a place, found null");
    const tensor_record *tensor = (unsigned)role <= CUTS_STATE ? find_tensor(&plan->file, role, index) : NULL;
    if (!tensor) return fail(CUTS_ERROR_ARGUMENT, "the plan has no tensor %u of role %d", index, (int)role);
    *info = (cuts_tensor_info){
        .name = text_of(&plan->file, tensor->name),
        .role = role,
        .dtype = tensor->dtype,
        .ndim = (int32_t)tensor->rank,
        .shape = plan->file.numbers + tensor->first_extent,
        .nbytes = tensor->nbytes,
    };
    return CUTS_OK;
}
