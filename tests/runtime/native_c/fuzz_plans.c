/* Opens mutations of packed plans: `fuzz_plans COUNT SEED DRIVER FILE...`.
 *
 * A file is changed in a few places, mostly to numbers at the limits of types, and read without its digest, or opened
 * with a right one. Plans that are accepted are described, and run now and then on a driver on host memory. Sanitizers
 * and exact allocations find each access outside of a file or a block.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuts_run.h"
#include "plan_file.h"
#include "sha256.h"

enum { HEADER_BYTES = 64, DIGEST_BYTE = 24, MAX_FILES = 64, MAX_TENSOR_BYTES = 1 << 16, MAX_TENSORS = 64 };

typedef struct content {
    uint8_t *bytes;
    size_t nbytes;
} content;

static uint64_t state;
static uint64_t counts[CUTS_ERROR_TENSOR + 1];
static uint64_t run_count;

/* Numbers by xorshift64*, so that a seed has the same files on each machine. */
static uint64_t draw(uint64_t limit) {
    state ^= state >> 12, state ^= state << 25, state ^= state >> 27;
    return ((state * 0x2545f4914f6cdd1dull) >> 16) % limit;
}

static content read_file(const char *path) {
    content found = {NULL, 0};
    FILE *file = fopen(path, "rb");
    if (!file) exit(2);
    fseek(file, 0, SEEK_END);
    found.nbytes = (size_t)ftell(file);
    rewind(file);
    found.bytes = malloc(found.nbytes);
    if (fread(found.bytes, 1, found.nbytes, file) != found.nbytes) exit(2);
    fclose(file);
    return found;
}

static uint64_t odd_number(const content *file) {
    static const uint64_t limits[] = {0,
                                      1,
                                      2,
                                      7,
                                      64,
                                      0x7fffffff,
                                      0x80000000,
                                      0xffffffff,
                                      0x7fffffffffffffff,
                                      0x8000000000000000,
                                      0xffffffffffffffff,
                                      1ull << 48,
                                      1ull << 32};
    switch (draw(4)) {
        case 0: return draw(file->nbytes + 64);
        case 1: return draw(UINT32_MAX) << draw(33) | draw(256);
        default: return limits[draw(sizeof limits / sizeof *limits)];
    }
}

static void mutate(content *file) {
    if (!file->nbytes) return;
    size_t place = draw(file->nbytes);
    size_t size = (size_t)1 << draw(4);
    uint64_t number = odd_number(file), old = 0;
    place -= place % size;
    if (place + size > file->nbytes) return;
    memcpy(&old, file->bytes + place, size);
    switch (draw(5)) {
        case 0: number = old + 1; break;
        case 1: number = old - 1; break;
        case 2: number = old ^ 1ull << draw(64); break;
        case 3: memcpy(&number, file->bytes + draw(file->nbytes - size + 1), size); break;
    }
    memcpy(file->bytes + place, &number, size);
}

/* Returns a changed copy in memory of exactly its size. */
static content changed_copy(const content *original) {
    size_t nbytes = draw(16) ? original->nbytes : draw(original->nbytes + 128);
    content copy = {malloc(nbytes ? nbytes : 1), nbytes};
    for (size_t n = 0; n < nbytes; n++) copy.bytes[n] = n < original->nbytes ? original->bytes[n] : (uint8_t)draw(256);
    if (!draw(64))
        for (size_t n = draw(2) * HEADER_BYTES; n < nbytes; n++) copy.bytes[n] = (uint8_t)draw(256);
    for (uint64_t left = draw(6); left; left--) mutate(&copy);
    return copy;
}

/* Gives a file the size and the digest that its content has. */
static void sign(content *file) {
    sha256 digest;
    if (file->nbytes < HEADER_BYTES) return;
    uint64_t nbytes = file->nbytes;
    memcpy(file->bytes + 16, &nbytes, sizeof nbytes);
    sha256_begin(&digest);
    sha256_add(&digest, file->bytes, DIGEST_BYTE);
    sha256_add(&digest, file->bytes + HEADER_BYTES, file->nbytes - HEADER_BYTES);
    sha256_end(&digest, file->bytes + DIGEST_BYTE);
}

static void describe(const cuts_plan *plan) {
    cuts_plan_info info;
    cuts_tensor_info tensor;
    uint64_t sum = 0;
    if (cuts_plan_describe(plan, &info)) abort();
    sum += strlen(info.name) + strlen(info.target);
    for (int role = CUTS_INPUT; role <= CUTS_STATE; role++)
        for (uint32_t n = 0; !cuts_plan_tensor(plan, (cuts_role)role, n, &tensor); n++) {
            sum += strlen(tensor.name);
            for (int32_t axis = 0; axis < tensor.ndim; axis++) sum += (uint64_t)tensor.shape[axis];
        }
    if (sum == 1) abort();
}

/* Allocates memory for the tensors of a role. Returns their number; -1 minus it, where some are too many or large. */
static int allocate(const cuts_plan *plan, cuts_role role, void **memory, uint64_t *sizes) {
    cuts_tensor_info tensor;
    int count = 0;
    while (count < MAX_TENSORS && !cuts_plan_tensor(plan, role, (uint32_t)count, &tensor)) {
        if (tensor.nbytes > MAX_TENSOR_BYTES) return -1 - count;
        sizes[count] = tensor.nbytes;
        memory[count++] = calloc(1, tensor.nbytes ? tensor.nbytes : 1);
    }
    return count < MAX_TENSORS ? count : -1 - count;
}

static void run(cuts_plan *plan) {
    void *inputs[MAX_TENSORS], *outputs[MAX_TENSORS];
    uint64_t input_bytes[MAX_TENSORS], output_bytes[MAX_TENSORS];
    int input_count = allocate(plan, CUTS_INPUT, inputs, input_bytes);
    int output_count = allocate(plan, CUTS_OUTPUT, outputs, output_bytes);
    cuts_session *session = NULL;
    if (input_count >= 0 && output_count >= 0 && !cuts_session_create(plan, &session)) {
        for (int times = 0; times < 2; times++)
            run_count += !cuts_session_run_pointers(session, inputs, input_bytes, (uint32_t)input_count, outputs,
                                                    output_bytes, (uint32_t)output_count, NULL);
        run_count += !cuts_session_run_host(session, (const void *const *)inputs, input_bytes, (uint32_t)input_count,
                                            outputs, output_bytes, (uint32_t)output_count);
        cuts_session_reset_state(session);
        cuts_session_destroy(session);
    }
    for (int n = input_count < 0 ? -1 - input_count : input_count; n; n--) free(inputs[n - 1]);
    for (int n = output_count < 0 ? -1 - output_count : output_count; n; n--) free(outputs[n - 1]);
}

static void open_plan(content *file, const cuts_options *options, int is_run) {
    cuts_plan *plan = NULL;
    sign(file);
    cuts_status status = cuts_plan_open_memory(file->bytes, file->nbytes, options, &plan);
    counts[status]++;
    if (status != CUTS_OK) return;
    describe(plan);
    if (is_run) run(plan);
    cuts_plan_close(plan);
}

static void read_without_digest(content *file) {
    plan_file found;
    counts[plan_file_read(file->bytes, file->nbytes, &found)]++;
}

static void declare_kernels(void *driver, const content *file) {
    void (*declare)(const char *, const char *) = (void (*)(const char *, const char *))dlsym(driver, "fake_declare");
    plan_file found;
    if (plan_file_read(file->bytes, file->nbytes, &found)) exit(2);
    for (uint64_t n = 0; n < found.kernel_count; n++) declare(text_of(&found, found.kernels[n].name), "");
}

int main(int count, char **words) {
    content files[MAX_FILES];
    cuts_options looking, running;
    int file_count = count - 4 < MAX_FILES ? count - 4 : MAX_FILES;
    if (file_count < 1) return 2;
    void *driver = dlopen(words[3], RTLD_NOW);
    if (!driver) return 2;
    state = strtoull(words[2], NULL, 10) * 2 + 1;
    for (int n = 0; n < file_count; n++) {
        files[n] = read_file(words[4 + n]);
        declare_kernels(driver, files + n);
    }
    ((void (*)(int, const char *, int, int))dlsym(driver, "fake_set"))(90, "", 1, 0);
    cuts_options_default(&looking);
    cuts_options_default(&running);
    looking.ordinal = -1;
    running.library = words[3];
    for (uint64_t left = strtoull(words[1], NULL, 10); left; left--) {
        content changed = changed_copy(files + draw((uint64_t)file_count));
        uint64_t way = draw(8);
        if (way < 4)
            read_without_digest(&changed);
        else
            open_plan(&changed, way < 7 ? &looking : &running, way == 7);
        free(changed.bytes);
    }
    for (int status = 0; status <= CUTS_ERROR_TENSOR; status++)
        if (counts[status])
            printf("%s %llu\n", cuts_status_name((cuts_status)status), (unsigned long long)counts[status]);
    printf("runs %llu\n", (unsigned long long)run_count);
    for (int n = 0; n < file_count; n++) free(files[n].bytes);
    return 0;
}
