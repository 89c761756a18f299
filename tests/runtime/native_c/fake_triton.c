/* Server for one request: `fake_triton BACKEND MODEL FOLDER INPUT:TYPE:BYTES... -- OUTPUT...`.
 *
 * It has the functions that backends call, loads one model with one instance, and executes a request whose inputs are
 * files of the folder. The first input comes in two buffers. Outputs become files, an error is printed.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "triton_calls.h"

#define FAKE __attribute__((visibility("default")))

enum { MAX_TENSORS = 16 };

struct TRITONSERVER_Error {
    char text[512];
};

struct TRITONBACKEND_Input {
    char name[64];
    int type;
    uint64_t nbytes;
    char *data;
};

struct TRITONBACKEND_Output {
    char name[64];
    void *data;
    uint64_t nbytes;
};

static struct TRITONBACKEND_Input inputs[MAX_TENSORS];
static struct TRITONBACKEND_Output outputs[MAX_TENSORS];
static uint32_t input_count, output_count, released, reported, live_errors;
static const char *model_folder, *wanted[MAX_TENSORS];
static uint32_t wanted_count;
static void *model_state, *instance_state;
static char failure[512];

FAKE TRITONSERVER_Error *TRITONSERVER_ErrorNew(TRITONSERVER_Error_Code code, const char *text) {
    TRITONSERVER_Error *error = calloc(1, sizeof *error);
    snprintf(error->text, sizeof error->text, "%d: %s", (int)code, text);
    live_errors++;
    return error;
}

FAKE void TRITONSERVER_ErrorDelete(TRITONSERVER_Error *error) {
    live_errors--;
    free(error);
}

FAKE TRITONSERVER_Error *TRITONBACKEND_ApiVersion(uint32_t *major, uint32_t *minor) {
    *major = 1, *minor = 19;
    return NULL;
}

FAKE TRITONSERVER_Error *TRITONBACKEND_ModelRepository(TRITONBACKEND_Model *model, TRITONBACKEND_ArtifactType *type,
                                                       const char **folder) {
    (void)model, (void)type;
    *folder = model_folder;
    return NULL;
}

FAKE TRITONSERVER_Error *TRITONBACKEND_ModelVersion(TRITONBACKEND_Model *model, uint64_t *version) {
    (void)model;
    *version = 1;
    return NULL;
}

FAKE TRITONSERVER_Error *TRITONBACKEND_ModelState(TRITONBACKEND_Model *model, void **state) {
    (void)model;
    *state = model_state;
    return NULL;
}

FAKE TRITONSERVER_Error *TRITONBACKEND_ModelSetState(TRITONBACKEND_Model *model, void *state) {
    (void)model;
    model_state = state;
    return NULL;
}

FAKE TRITONSERVER_Error *TRITONBACKEND_ModelInstanceModel(TRITONBACKEND_ModelInstance *instance,
                                                          TRITONBACKEND_Model **model) {
    *model = (TRITONBACKEND_Model *)instance;
    return NULL;
}

FAKE TRITONSERVER_Error *TRITONBACKEND_ModelInstanceKind(TRITONBACKEND_ModelInstance *instance,
                                                         TRITONSERVER_InstanceGroupKind *kind) {
    (void)instance;
    *kind = TRITONSERVER_INSTANCEGROUPKIND_GPU;
    return NULL;
}

FAKE TRITONSERVER_Error *TRITONBACKEND_ModelInstanceDeviceId(TRITONBACKEND_ModelInstance *instance, int32_t *device) {
    (void)instance;
    *device = 0;
    return NULL;
}

FAKE TRITONSERVER_Error *TRITONBACKEND_ModelInstanceState(TRITONBACKEND_ModelInstance *instance, void **state) {
    (void)instance;
    *state = instance_state;
    return NULL;
}

FAKE TRITONSERVER_Error *TRITONBACKEND_ModelInstanceSetState(TRITONBACKEND_ModelInstance *instance, void *state) {
    (void)instance;
    instance_state = state;
    return NULL;
}

FAKE TRITONSERVER_Error *TRITONBACKEND_ModelInstanceReportStatistics(TRITONBACKEND_ModelInstance *instance,
                                                                     TRITONBACKEND_Request *request,
                                                                     const bool is_right, const uint64_t begin,
                                                                     const uint64_t compute_begin,
                                                                     const uint64_t compute_end, const uint64_t end) {
    (void)instance, (void)request, (void)is_right;
    reported += begin <= compute_begin && compute_begin <= compute_end && compute_end <= end;
    return NULL;
}

FAKE TRITONSERVER_Error *TRITONBACKEND_RequestInput(TRITONBACKEND_Request *request, const char *name,
                                                    TRITONBACKEND_Input **input) {
    (void)request;
    for (uint32_t n = 0; n < input_count; n++)
        if (strcmp(inputs[n].name, name) == 0) {
            *input = inputs + n;
            return NULL;
        }
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG, "the request lacks an input");
}

FAKE TRITONSERVER_Error *TRITONBACKEND_RequestOutputCount(TRITONBACKEND_Request *request, uint32_t *count) {
    (void)request;
    *count = wanted_count;
    return NULL;
}

FAKE TRITONSERVER_Error *TRITONBACKEND_RequestOutputName(TRITONBACKEND_Request *request, const uint32_t number,
                                                         const char **name) {
    (void)request;
    *name = wanted[number];
    return NULL;
}

FAKE TRITONSERVER_Error *TRITONBACKEND_RequestRelease(TRITONBACKEND_Request *request, uint32_t flags) {
    (void)request;
    released += flags == TRITONSERVER_REQUEST_RELEASE_ALL;
    return NULL;
}

FAKE TRITONSERVER_Error *TRITONBACKEND_InputProperties(TRITONBACKEND_Input *input, const char **name,
                                                       TRITONSERVER_DataType *type, const int64_t **shape,
                                                       uint32_t *rank, uint64_t *nbytes, uint32_t *buffer_count) {
    (void)shape, (void)rank;
    if (name) *name = input->name;
    *type = input->type;
    *nbytes = input->nbytes;
    *buffer_count = input == inputs ? 2 : 1;
    return NULL;
}

FAKE TRITONSERVER_Error *TRITONBACKEND_InputBuffer(TRITONBACKEND_Input *input, const uint32_t number, const void **data,
                                                   uint64_t *nbytes, TRITONSERVER_MemoryType *place, int64_t *device) {
    uint64_t half = input == inputs ? input->nbytes / 2 : input->nbytes;
    *data = input->data + (number ? half : 0);
    *nbytes = number ? input->nbytes - half : half;
    *place = TRITONSERVER_MEMORY_CPU;
    *device = 0;
    return NULL;
}

FAKE TRITONSERVER_Error *TRITONBACKEND_OutputBuffer(TRITONBACKEND_Output *output, void **data, const uint64_t nbytes,
                                                    TRITONSERVER_MemoryType *place, int64_t *device) {
    output->nbytes = nbytes;
    *data = output->data = malloc(nbytes + 1);
    *place = TRITONSERVER_MEMORY_CPU;
    *device = 0;
    return NULL;
}

FAKE TRITONSERVER_Error *TRITONBACKEND_ResponseNew(TRITONBACKEND_Response **response, TRITONBACKEND_Request *request) {
    *response = (TRITONBACKEND_Response *)request;
    return NULL;
}

FAKE TRITONSERVER_Error *TRITONBACKEND_ResponseOutput(TRITONBACKEND_Response *response, TRITONBACKEND_Output **output,
                                                      const char *name, const TRITONSERVER_DataType type,
                                                      const int64_t *shape, const uint32_t rank) {
    (void)response, (void)type, (void)shape, (void)rank;
    *output = outputs + output_count++;
    snprintf((*output)->name, sizeof(*output)->name, "%s", name);
    return NULL;
}

FAKE TRITONSERVER_Error *TRITONBACKEND_ResponseSend(TRITONBACKEND_Response *response, const uint32_t flags,
                                                    TRITONSERVER_Error *error) {
    (void)response;
    if (flags != TRITONSERVER_RESPONSE_COMPLETE_FINAL) exit(2);
    if (error) snprintf(failure, sizeof failure, "%s", error->text);
    return NULL;
}

static FILE *open_file(const char *folder, const char *name, const char *mode) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s.bin", folder, name);
    FILE *file = fopen(path, mode);
    if (!file) exit(2);
    return file;
}

static void read_input(const char *folder, const char *word) {
    struct TRITONBACKEND_Input *input = inputs + input_count++;
    unsigned long long nbytes = 0;
    if (sscanf(word, "%63[^:]:%d:%llu", input->name, &input->type, &nbytes) != 3) exit(2);
    input->nbytes = nbytes;
    input->data = calloc(1, nbytes + 1);
    FILE *file = open_file(folder, input->name, "rb");
    if (fread(input->data, 1, nbytes, file) != nbytes) exit(2);
    fclose(file);
}

static void check(TRITONSERVER_Error *error) {
    if (!error) return;
    printf("%s\n", error->text);
    exit(1);
}

static void *function(void *backend, const char *name) {
    void *found = dlsym(backend, name);
    if (!found) exit(2);
    return found;
}

int main(int count, char **words) {
    static char server, request;
    typedef TRITONSERVER_Error *(*step)(void *);
    void *backend = dlopen(words[1], RTLD_NOW), *requests[] = {&request};
    if (!backend) {
        printf("%s\n", dlerror());
        return 2;
    }
    model_folder = words[2];
    int word = 4;
    for (; word < count && strcmp(words[word], "--"); word++) read_input(words[3], words[word]);
    for (word++; word < count; word++) wanted[wanted_count++] = words[word];
    check(((step)function(backend, "TRITONBACKEND_Initialize"))(&server));
    check(((step)function(backend, "TRITONBACKEND_ModelInitialize"))(&server));
    check(((step)function(backend, "TRITONBACKEND_ModelInstanceInitialize"))(&server));
    typedef TRITONSERVER_Error *(*execution)(void *, void **, uint32_t);
    check(((execution)function(backend, "TRITONBACKEND_ModelInstanceExecute"))(&server, requests, 1));
    check(((step)function(backend, "TRITONBACKEND_ModelInstanceFinalize"))(&server));
    check(((step)function(backend, "TRITONBACKEND_ModelFinalize"))(&server));
    if (*failure) printf("%s\n", failure);
    printf("released %u reported %u live errors %u\n", released, reported, live_errors);
    for (uint32_t n = 0; n < output_count && !*failure; n++) {
        FILE *file = open_file(words[3], outputs[n].name, "wb");
        fwrite(outputs[n].data, 1, outputs[n].nbytes, file);
        fclose(file);
    }
    return 0;
}
