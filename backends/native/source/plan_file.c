#include "plan_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "status.h"

enum { HEADER_BYTES = 64, SECTION_ALIGNMENT = 64 };

typedef struct header {
    char magic[8];
    uint32_t version, section_count;
    uint64_t nbytes;
    uint8_t digest[SHA256_BYTES]; /* of the fields before it, and of everything after the header */
    uint64_t reserved;
} header;

typedef struct section_record {
    uint32_t kind, record_bytes;
    uint64_t offset, nbytes, reserved;
} section_record;

_Static_assert(sizeof(header) == HEADER_BYTES, "the header is written in this layout");
_Static_assert(sizeof(section_record) == 32, "sections are written in this layout");

static const size_t RECORD_BYTES[SECTION_COUNT] = {
    sizeof(info_record),    sizeof(block_record),   sizeof(tensor_record),   sizeof(image_record),
    sizeof(program_record), sizeof(kernel_record),  sizeof(argument_record), sizeof(map_record),
    sizeof(launch_record),  sizeof(address_record), sizeof(copy_record),     sizeof(int64_t),
    sizeof(char),           sizeof(uint8_t),
};

static cuts_status check_header(const header *head, size_t nbytes) {
    if (nbytes < HEADER_BYTES || memcmp(head->magic, "cutsplan", sizeof head->magic))
        return fail(CUTS_ERROR_FORMAT, "expected a packed plan, found another file: write it with 'cuts export'");
    if (head->version != PLAN_FORMAT_VERSION)
        return fail(CUTS_ERROR_VERSION, "the plan has format version %u, this library reads %d: write it again",
                    head->version, PLAN_FORMAT_VERSION);
    if (head->nbytes != nbytes)
        return fail(CUTS_ERROR_FORMAT, "expected a plan of %llu bytes, found %llu: the file is truncated or too long",
                    (unsigned long long)head->nbytes, (unsigned long long)nbytes);
    return CUTS_OK;
}

cuts_status check_plan_digest(const uint8_t found[SHA256_BYTES], const void *bytes) {
    const header *head = bytes;
    if (memcmp(found, head->digest, SHA256_BYTES))
        return fail(CUTS_ERROR_DIGEST, "the plan is damaged: its digest does not fit its content; write it again");
    return CUTS_OK;
}

void compute_plan_digest(const void *bytes, size_t nbytes, uint8_t found[SHA256_BYTES]) {
    sha256 digest;
    sha256_begin(&digest);
    sha256_add(&digest, bytes, offsetof(header, digest));
    sha256_add(&digest, (const header *)bytes + 1, nbytes - HEADER_BYTES);
    sha256_end(&digest, found);
}

/* Sets the records and their count of section number `index`. */
static void set_section(plan_file *file, uint32_t index, const void *records, uint64_t count) {
    struct {
        const void **records;
        uint64_t *count;
    } places[SECTION_COUNT] = {
        {(const void **)&file->info, &file->info_count},
        {(const void **)&file->blocks, &file->block_count},
        {(const void **)&file->tensors, &file->tensor_count},
        {(const void **)&file->images, &file->image_count},
        {(const void **)&file->programs, &file->program_count},
        {(const void **)&file->kernels, &file->kernel_count},
        {(const void **)&file->arguments, &file->argument_count},
        {(const void **)&file->maps, &file->map_count},
        {(const void **)&file->launches, &file->launch_count},
        {(const void **)&file->addresses, &file->address_count},
        {(const void **)&file->copies, &file->copy_count},
        {(const void **)&file->numbers, &file->number_count},
        {(const void **)&file->texts, &file->text_bytes},
        {(const void **)&file->data, &file->data_bytes},
    };
    *places[index].records = records;
    *places[index].count = count;
}

static cuts_status read_section(plan_file *file, uint32_t index, const section_record *section) {
    size_t record = RECORD_BYTES[index];
    if (section->kind != index + 1 || section->record_bytes != record)
        return fail(CUTS_ERROR_FORMAT, "section %u: expected kind %u with records of %zu bytes, found kind %u and %u",
                    index, index + 1, record, section->kind, section->record_bytes);
    if (section->offset % SECTION_ALIGNMENT || section->offset > file->nbytes ||
        section->nbytes > file->nbytes - section->offset || section->nbytes % record)
        return fail(CUTS_ERROR_FORMAT, "section %u: its %llu bytes at byte %llu do not fit a plan of %zu", index,
                    (unsigned long long)section->nbytes, (unsigned long long)section->offset, file->nbytes);
    set_section(file, index, file->bytes + section->offset, section->nbytes / record);
    return CUTS_OK;
}

cuts_status plan_file_read(const void *bytes, size_t nbytes, plan_file *file) {
    const header *head = bytes;
    *file = (plan_file){.bytes = bytes, .nbytes = nbytes};
    TRY(check_header(head, nbytes));
    if (head->section_count != SECTION_COUNT || nbytes < HEADER_BYTES + SECTION_COUNT * sizeof(section_record))
        return fail(CUTS_ERROR_FORMAT, "expected %d sections, found %u in %zu bytes", SECTION_COUNT,
                    head->section_count, nbytes);
    const section_record *sections = (const section_record *)(head + 1);
    for (uint32_t index = 0; index < SECTION_COUNT; index++) TRY(read_section(file, index, sections + index));
    return check_plan_records(file);
}

/* Reads a file whose digest is checked later; damage is reported before the records that it makes wrong. */
static cuts_status read_records(const void *bytes, size_t nbytes, plan_file *file) {
    uint8_t found[SHA256_BYTES];
    TRY(check_header(bytes, nbytes));
    cuts_status status = plan_file_read(bytes, nbytes, file);
    if (status == CUTS_OK) return CUTS_OK;
    compute_plan_digest(bytes, nbytes, found);
    return check_plan_digest(found, bytes) == CUTS_OK ? status : CUTS_ERROR_DIGEST;
}

cuts_status plan_file_open_memory(const void *bytes, size_t nbytes, plan_file *file) {
    void *copy = malloc(nbytes ? nbytes : 1);
    if (!copy) return fail(CUTS_ERROR_MEMORY, "a plan of %zu bytes does not fit into memory", nbytes);
    if (nbytes) memcpy(copy, bytes, nbytes);
    cuts_status status = read_records(copy, nbytes, file);
    if (status != CUTS_OK) free(copy);
    return status;
}

/* Maps an open file for reading. */
static cuts_status map_file(int descriptor, const char *path, void **bytes, size_t *nbytes) {
    struct stat facts;
    if (fstat(descriptor, &facts)) return fail(CUTS_ERROR_FILE, "cannot read %s: %s", path, strerror(errno));
    if (!S_ISREG(facts.st_mode)) return fail(CUTS_ERROR_FILE, "cannot read %s: expected a file", path);
    if (facts.st_size < HEADER_BYTES)
        return fail(CUTS_ERROR_FORMAT, "%s: expected a packed plan, found a file of %lld bytes", path,
                    (long long)facts.st_size);
    *nbytes = (size_t)facts.st_size;
    *bytes = mmap(NULL, *nbytes, PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (*bytes == MAP_FAILED) return fail(CUTS_ERROR_FILE, "cannot read %s: %s", path, strerror(errno));
    return CUTS_OK;
}

cuts_status plan_file_open(const char *path, plan_file *file) {
    int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) return fail(CUTS_ERROR_FILE, "cannot read %s: %s", path, strerror(errno));
    void *bytes = NULL;
    size_t nbytes = 0;
    cuts_status status = map_file(descriptor, path, &bytes, &nbytes);
    close(descriptor);
    TRY(status);
    status = read_records(bytes, nbytes, file);
    file->is_mapped = 1;
    if (status != CUTS_OK) munmap(bytes, nbytes);
    return status;
}

void plan_file_close(plan_file *file) {
    if (file->is_mapped)
        munmap((void *)file->bytes, file->nbytes);
    else
        free((void *)file->bytes);
}

const tensor_record *find_tensor(const plan_file *file, cuts_role role, uint32_t index) {
    uint32_t first = 0;
    for (int before = 0; before < (int)role; before++) first += file->role_counts[before];
    return index < file->role_counts[role] ? file->tensors + first + index : NULL;
}
