/* Checks of a packed plan: each number that refers to something refers into it, each piece of memory lies in its block.
 *
 * They protect against damage and mistakes. Kernels are code, and a plan with a right digest is trusted like code.
 */
#include <stdlib.h>
#include <string.h>

#include "plan_file.h"
#include "status.h"

/* Bytes of a block at most: sums of two offsets and sizes then never overflow. */
static const uint64_t MAX_BLOCK_BYTES = 1ull << 48;
static const uint64_t MAX_RECORDS = UINT32_MAX;
static const uint64_t MAX_THREADS = 1 << 20;

#define REQUIRE(condition, ...)                                        \
    do {                                                               \
        if (!(condition)) return fail(CUTS_ERROR_FORMAT, __VA_ARGS__); \
    } while (0)

/* Whether `count` elements from `first` lie within `limit`. */
static int is_within(uint64_t first, uint64_t count, uint64_t limit) {
    return first <= limit && count <= limit - first;
}

static cuts_status check_text(const plan_file *file, text_ref text, const char *owner) {
    REQUIRE(is_within(text.first, (uint64_t)text.length + 1, file->text_bytes) &&
                file->texts[(uint64_t)text.first + text.length] == 0,
            "the text of %s lies outside of the texts", owner);
    return CUTS_OK;
}

static cuts_status check_counts(const plan_file *file) {
    uint64_t counts[] = {file->block_count,   file->tensor_count,   file->image_count, file->program_count,
                         file->kernel_count,  file->argument_count, file->map_count,   file->launch_count,
                         file->address_count, file->copy_count,     file->number_count};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        REQUIRE(counts[i] < MAX_RECORDS, "a section has %llu records", (unsigned long long)counts[i]);
    return CUTS_OK;
}

static cuts_status check_info(const plan_file *file) {
    REQUIRE(file->info_count == 1, "expected one record about the plan, found %llu",
            (unsigned long long)file->info_count);
    const info_record *info = file->info;
    TRY(check_text(file, info->name, "the plan's name"));
    TRY(check_text(file, info->cuts, "the version of cuts"));
    TRY(check_text(file, info->target, "the target"));
    TRY(check_text(file, info->options, "the build options"));
    REQUIRE(info->dialect == DIALECT_OPENCL || info->dialect == DIALECT_CUDA, "unknown dialect %u", info->dialect);
    return CUTS_OK;
}

static cuts_status check_blocks(const plan_file *file) {
    for (uint64_t n = 0; n < file->block_count; n++) {
        const block_record *block = file->blocks + n;
        REQUIRE(block->kind <= BLOCK_OUTPUT, "block %llu is of unknown kind %u", (unsigned long long)n, block->kind);
        REQUIRE(block->nbytes <= MAX_BLOCK_BYTES, "block %llu has %llu bytes", (unsigned long long)n,
                (unsigned long long)block->nbytes);
    }
    return CUTS_OK;
}

/* The bytes of a tensor are those of its shape and element type. */
static cuts_status check_extents(const plan_file *file, const tensor_record *tensor, const char *name) {
    REQUIRE(tensor->rank <= MAX_RANK && is_within(tensor->first_extent, tensor->rank, file->number_count),
            "tensor '%s' has a shape outside of the numbers", name);
    uint64_t nbytes = (uint64_t)tensor->dtype.bits / 8;
    REQUIRE(nbytes && tensor->dtype.bits % 8 == 0 && tensor->dtype.lanes == 1, "tensor '%s' has elements of %u bits",
            name, tensor->dtype.bits);
    int is_empty = 0;
    for (uint32_t axis = 0; axis < tensor->rank; axis++) {
        int64_t extent = file->numbers[tensor->first_extent + axis];
        REQUIRE(extent >= 0, "tensor '%s' has the extent %lld", name, (long long)extent);
        is_empty |= extent == 0;
        if (extent) REQUIRE(nbytes <= MAX_BLOCK_BYTES / (uint64_t)extent, "tensor '%s' is too large", name);
        if (extent) nbytes *= (uint64_t)extent;
    }
    REQUIRE(tensor->nbytes == (is_empty ? 0 : nbytes), "tensor '%s' has %llu bytes, its shape %llu", name,
            (unsigned long long)tensor->nbytes, (unsigned long long)nbytes);
    return CUTS_OK;
}

/* State that takes turns with another block of the session fills both. */
static cuts_status check_partner(const plan_file *file, const tensor_record *tensor, const char *name) {
    if (tensor->partner == NO_NUMBER) return CUTS_OK;
    REQUIRE(tensor->role == CUTS_STATE && tensor->partner < file->block_count, "tensor '%s' has no partner", name);
    const block_record *partner = file->blocks + tensor->partner;
    REQUIRE(partner->kind == BLOCK_SESSION && partner->nbytes == tensor->nbytes && !tensor->offset &&
                file->blocks[tensor->block].nbytes == tensor->nbytes,
            "state '%s' and its partner are no whole blocks", name);
    return CUTS_OK;
}

/* A caller's tensor is a whole block; state lies within one of the session. */
static cuts_status check_tensor(const plan_file *file, const tensor_record *tensor) {
    static const block_kind kinds[] = {BLOCK_INPUT, BLOCK_OUTPUT, BLOCK_SESSION};
    TRY(check_text(file, tensor->name, "a tensor's name"));
    const char *name = text_of(file, tensor->name);
    REQUIRE(tensor->role <= CUTS_STATE && tensor->block < file->block_count, "tensor '%s' has no block", name);
    const block_record *block = file->blocks + tensor->block;
    REQUIRE(block->kind == kinds[tensor->role], "tensor '%s' lies in a block of kind %u", name, block->kind);
    TRY(check_extents(file, tensor, name));
    REQUIRE(is_within(tensor->offset, tensor->nbytes, block->nbytes), "tensor '%s' lies outside of its block", name);
    REQUIRE(tensor->role == CUTS_STATE || tensor->nbytes == block->nbytes, "tensor '%s' is not all of its block", name);
    return check_partner(file, tensor, name);
}

/* Counts the tensors of a caller's blocks; each such block has one, or a run would find no memory there. */
static cuts_status check_owners(const plan_file *file, uint8_t *is_owned) {
    for (uint64_t n = 0; n < file->tensor_count; n++) {
        const tensor_record *tensor = file->tensors + n;
        REQUIRE(tensor->role == CUTS_STATE || !is_owned[tensor->block], "tensor '%s' shares its block with another",
                text_of(file, tensor->name));
        is_owned[tensor->block] = 1;
    }
    for (uint64_t n = 0; n < file->block_count; n++)
        REQUIRE(file->blocks[n].kind < BLOCK_INPUT || is_owned[n], "block %llu has no tensor", (unsigned long long)n);
    return CUTS_OK;
}

static cuts_status check_tensors(plan_file *file) {
    for (uint64_t n = 0; n < file->tensor_count; n++) {
        const tensor_record *tensor = file->tensors + n;
        TRY(check_tensor(file, tensor));
        REQUIRE(!n || tensor[-1].role <= tensor->role, "tensors are not in the order of their roles");
        file->role_counts[tensor->role]++;
    }
    uint8_t *is_owned = calloc(file->block_count + 1, 1);
    if (!is_owned) return fail(CUTS_ERROR_MEMORY, "too little memory to check a plan");
    cuts_status status = check_owners(file, is_owned);
    free(is_owned);
    return status;
}

static cuts_status check_images(const plan_file *file) {
    for (uint64_t n = 0; n < file->image_count; n++) {
        const image_record *image = file->images + n;
        REQUIRE(image->block < file->block_count && file->blocks[image->block].kind <= BLOCK_SESSION &&
                    is_within(image->offset, image->nbytes, file->blocks[image->block].nbytes),
                "image %llu lies outside of its block", (unsigned long long)n);
        REQUIRE(is_within(image->data, image->nbytes, file->data_bytes), "image %llu lies outside of the data",
                (unsigned long long)n);
    }
    return CUTS_OK;
}

static cuts_status check_programs(const plan_file *file) {
    for (uint64_t n = 0; n < file->program_count; n++)
        REQUIRE(
            file->programs[n].nbytes && is_within(file->programs[n].data, file->programs[n].nbytes, file->data_bytes),
            "program %llu lies outside of the data", (unsigned long long)n);
    return CUTS_OK;
}

static cuts_status check_arguments(const plan_file *file) {
    for (uint64_t n = 0; n < file->argument_count; n++) {
        const argument_record *argument = file->arguments + n;
        uint32_t size = argument->element_bytes;
        REQUIRE(size == 1 || size == 2 || size == 4 || size == 8, "argument %llu has elements of %u bytes",
                (unsigned long long)n, size);
        REQUIRE(argument->map == NO_NUMBER || (argument->map < file->map_count && file->info->dialect == DIALECT_CUDA),
                "argument %llu has no tensor map", (unsigned long long)n);
    }
    for (uint64_t n = 0; n < file->map_count; n++) {
        const map_record *map = file->maps + n;
        REQUIRE(map->rank && map->rank <= MAX_MAP_RANK, "tensor map %llu has %u dims", (unsigned long long)n, map->rank);
        REQUIRE(!map->walked || (map->walked <= MAX_WALKED && map->walked + 2 == map->rank),
                "tensor map %llu walks %u of %u dims", (unsigned long long)n, map->walked, map->rank);
    }
    return CUTS_OK;
}

static cuts_status check_kernels(const plan_file *file) {
    for (uint64_t n = 0; n < file->kernel_count; n++) {
        const kernel_record *kernel = file->kernels + n;
        TRY(check_text(file, kernel->name, "a kernel's name"));
        int is_callers = kernel->program == NO_NUMBER && file->info->dialect == DIALECT_CUDA;
        REQUIRE((kernel->program < file->program_count || is_callers) &&
                    is_within(kernel->first_argument, kernel->argument_count, file->argument_count),
                "kernel %llu has no program, or arguments outside of the list", (unsigned long long)n);
        const uint32_t *block = kernel->block;
        for (int axis = 0; axis < 3; axis++)
            REQUIRE(block[axis] && block[axis] <= MAX_THREADS, "kernel %llu has blocks of %u threads",
                    (unsigned long long)n, block[axis]);
        REQUIRE((uint64_t)block[0] * block[1] <= MAX_THREADS && (uint64_t)block[0] * block[1] * block[2] <= MAX_THREADS,
                "kernel %llu has too many threads in a block", (unsigned long long)n);
        REQUIRE(kernel->waits <= 1, "kernel %llu contradicts itself", (unsigned long long)n);
    }
    return CUTS_OK;
}

static cuts_status check_address(const plan_file *file, const address_record *address, uint64_t nbytes) {
    REQUIRE(
        address->block < file->block_count && is_within(address->offset, nbytes, file->blocks[address->block].nbytes),
        "an address lies outside of its block");
    return CUTS_OK;
}

static cuts_status check_launch(const plan_file *file, uint64_t number) {
    const launch_record *launch = file->launches + number;
    int is_graph = launch->kernel == NO_NUMBER && file->info->dialect == DIALECT_CUDA;
    REQUIRE(launch->kernel < file->kernel_count || (is_graph && launch->evict_first == NO_NUMBER),
            "launch %llu has no kernel", (unsigned long long)number);
    if (is_graph) return CUTS_OK;
    const kernel_record *kernel = file->kernels + launch->kernel;
    REQUIRE(is_within(launch->first_address, kernel->argument_count, file->address_count),
            "launch %llu has addresses outside of the list", (unsigned long long)number);
    for (uint32_t n = 0; n < kernel->argument_count; n++) {
        const address_record *address = file->addresses + launch->first_address + n;
        uint32_t size = file->arguments[kernel->first_argument + n].element_bytes;
        TRY(check_address(file, address, 0));
        REQUIRE(address->offset % size == 0, "launch %llu: argument %u begins within an element",
                (unsigned long long)number, n);
    }
    REQUIRE(launch->evict_first == NO_NUMBER || launch->evict_first < kernel->argument_count,
            "launch %llu evicts no argument of its own", (unsigned long long)number);
    if (launch->evict_first != NO_NUMBER)
        TRY(check_address(file, file->addresses + launch->first_address + launch->evict_first,
                          launch->evict_first_bytes));
    return CUTS_OK;
}

/* A launch waits for earlier launches only. */
static cuts_status check_waits(const plan_file *file, uint64_t number) {
    const launch_record *launch = file->launches + number;
    if (launch->wait_count == NO_NUMBER) return CUTS_OK;
    REQUIRE(is_within(launch->first_wait, launch->wait_count, file->number_count),
            "launch %llu has dependencies outside of the list", (unsigned long long)number);
    for (uint32_t n = 0; n < launch->wait_count; n++) {
        int64_t wait = file->numbers[launch->first_wait + n];
        REQUIRE(wait >= 0 && (uint64_t)wait < number, "launch %llu waits for launch %lld", (unsigned long long)number,
                (long long)wait);
    }
    return CUTS_OK;
}

/* All rows of a copy lie within the blocks, without overlap of their own. */
static cuts_status check_rows(const plan_file *file, const copy_record *copy, const address_record *address,
                              uint64_t pitch) {
    REQUIRE(address->block < file->block_count, "a copy has no block");
    uint64_t nbytes = file->blocks[address->block].nbytes;
    REQUIRE(copy->width && copy->width <= nbytes && copy->height && pitch >= copy->width && pitch <= MAX_BLOCK_BYTES &&
                copy->height - 1 <= nbytes / pitch &&
                is_within(address->offset, (copy->height - 1) * pitch + copy->width, nbytes),
            "a copy lies outside of its block");
    return CUTS_OK;
}

static cuts_status check_copies(const plan_file *file) {
    for (uint64_t n = 0; n < file->copy_count; n++) {
        const copy_record *copy = file->copies + n;
        TRY(check_rows(file, copy, &copy->source, copy->source_pitch));
        TRY(check_rows(file, copy, &copy->target, copy->target_pitch));
        uint32_t kind = file->blocks[copy->target.block].kind;
        REQUIRE(copy->after <= 1 && (kind == BLOCK_SESSION || kind == BLOCK_OUTPUT), "copy %llu writes to an input",
                (unsigned long long)n);
    }
    return CUTS_OK;
}

cuts_status check_plan_records(plan_file *file) {
    memset(file->role_counts, 0, sizeof file->role_counts);
    TRY(check_counts(file));
    TRY(check_info(file));
    TRY(check_blocks(file));
    TRY(check_tensors(file));
    TRY(check_images(file));
    TRY(check_programs(file));
    TRY(check_arguments(file));
    TRY(check_kernels(file));
    for (uint64_t n = 0; n < file->launch_count; n++) {
        TRY(check_launch(file, n));
        TRY(check_waits(file, n));
    }
    return check_copies(file);
}
