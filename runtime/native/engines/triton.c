/* Packed plans in Triton Inference Server: a backend that runs MODEL/VERSION/model.cutsplan.
 *
 * A model has one opened plan for each of its devices, an instance a session of it. A request is one run, in host
 * memory: shapes are those of the plan, so the model's configuration has `max_batch_size: 0`.
 */
#include "triton_calls.h"

#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cuts_run.h"

enum { MAX_DEVICES = 64, MAX_MESSAGE = 8192 };

/* Leaves the calling function with the error of a call that failed. */
#define TRY_TRITON(call)                    \
    do {                                    \
        TRITONSERVER_Error *error_ = (call); \
        if (error_) return error_;          \
    } while (0)

#define TRY_PLAN(call)                                                                               \
    do {                                                                                             \
        if ((call) != CUTS_OK)                                                                       \
            return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, cuts_last_error());            \
    } while (0)

typedef struct model_state {
    char path[PATH_MAX];
    pthread_mutex_t mutex;
    cuts_plan *plans[MAX_DEVICES]; /* by number of the device */
} model_state;

typedef struct instance_state {
    cuts_plan *plan;
    cuts_session *session;
    cuts_plan_info info;
} instance_state;

/* Tensors of a request: inputs, then outputs. `owned` has the inputs that were put together here. */
typedef struct request_tensors {
    void **data, **owned;
    uint64_t *nbytes;
} request_tensors;

static TRITONSERVER_Error *refuse(TRITONSERVER_Error_Code code, const char *name, const char *text) {
    char message[MAX_MESSAGE];
    snprintf(message, sizeof message, "'%s' %s", name, text);
    return TRITONSERVER_ErrorNew(code, message);
}

static uint64_t nanoseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static TRITONSERVER_DataType data_type(cuts_dtype dtype) {
    static const struct {
        uint8_t code, bits;
        TRITONSERVER_DataType type;
    } types[] = {
        {6, 8, TRITONSERVER_TYPE_BOOL},    {1, 8, TRITONSERVER_TYPE_UINT8},   {1, 16, TRITONSERVER_TYPE_UINT16},
        {1, 32, TRITONSERVER_TYPE_UINT32}, {1, 64, TRITONSERVER_TYPE_UINT64}, {0, 8, TRITONSERVER_TYPE_INT8},
        {0, 16, TRITONSERVER_TYPE_INT16},  {0, 32, TRITONSERVER_TYPE_INT32},  {0, 64, TRITONSERVER_TYPE_INT64},
        {2, 16, TRITONSERVER_TYPE_FP16},   {2, 32, TRITONSERVER_TYPE_FP32},   {2, 64, TRITONSERVER_TYPE_FP64},
        {4, 16, TRITONSERVER_TYPE_BF16},
    };
    for (size_t n = 0; n < sizeof types / sizeof *types; n++)
        if (types[n].code == dtype.code && types[n].bits == dtype.bits) return types[n].type;
    return TRITONSERVER_TYPE_INVALID;
}

TRITONBACKEND_ISPEC TRITONSERVER_Error *TRITONBACKEND_Initialize(TRITONBACKEND_Backend *backend) {
    uint32_t major = 0, minor = 0;
    (void)backend;
    TRY_TRITON(TRITONBACKEND_ApiVersion(&major, &minor));
    if (major == TRITONBACKEND_API_VERSION_MAJOR) return NULL;
    return refuse(TRITONSERVER_ERROR_UNSUPPORTED, "cuts", "needs version 1 of the interface for backends");
}

TRITONBACKEND_ISPEC TRITONSERVER_Error *TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model *model) {
    TRITONBACKEND_ArtifactType type;
    const char *folder = NULL;
    uint64_t version = 0;
    TRY_TRITON(TRITONBACKEND_ModelRepository(model, &type, &folder));
    TRY_TRITON(TRITONBACKEND_ModelVersion(model, &version));
    model_state *state = calloc(1, sizeof *state);
    if (!state) return refuse(TRITONSERVER_ERROR_INTERNAL, folder, "needs more memory");
    snprintf(state->path, sizeof state->path, "%s/%llu/model.cutsplan", folder, (unsigned long long)version);
    pthread_mutex_init(&state->mutex, NULL);
    return TRITONBACKEND_ModelSetState(model, state);
}

TRITONBACKEND_ISPEC TRITONSERVER_Error *TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model *model) {
    model_state *state = NULL;
    TRY_TRITON(TRITONBACKEND_ModelState(model, (void **)&state));
    if (!state) return NULL;
    for (int n = 0; n < MAX_DEVICES; n++) cuts_plan_close(state->plans[n]);
    pthread_mutex_destroy(&state->mutex);
    free(state);
    return NULL;
}

/* Opens the plan of a model on a device, unless an instance there has. */
static TRITONSERVER_Error *open_plan(model_state *model, int32_t device, cuts_plan **plan) {
    cuts_options options;
    cuts_status status = CUTS_OK;
    cuts_options_default(&options);
    options.ordinal = device;
    if (device < 0 || device >= MAX_DEVICES)
        return refuse(TRITONSERVER_ERROR_INVALID_ARG, model->path, "has no device of that number");
    pthread_mutex_lock(&model->mutex);
    if (!model->plans[device]) status = cuts_plan_open(model->path, &options, model->plans + device);
    *plan = model->plans[device];
    pthread_mutex_unlock(&model->mutex);
    TRY_PLAN(status);
    return NULL;
}

static TRITONSERVER_Error *open_instance(TRITONBACKEND_ModelInstance *instance, instance_state *state) {
    TRITONBACKEND_Model *model = NULL;
    TRITONSERVER_InstanceGroupKind kind;
    model_state *opened = NULL;
    int32_t device = 0;
    TRY_TRITON(TRITONBACKEND_ModelInstanceModel(instance, &model));
    TRY_TRITON(TRITONBACKEND_ModelState(model, (void **)&opened));
    TRY_TRITON(TRITONBACKEND_ModelInstanceKind(instance, &kind));
    if (kind == TRITONSERVER_INSTANCEGROUPKIND_GPU) TRY_TRITON(TRITONBACKEND_ModelInstanceDeviceId(instance, &device));
    TRY_TRITON(open_plan(opened, device, &state->plan));
    TRY_PLAN(cuts_plan_describe(state->plan, &state->info));
    TRY_PLAN(cuts_session_create(state->plan, &state->session));
    return NULL;
}

TRITONBACKEND_ISPEC TRITONSERVER_Error *TRITONBACKEND_ModelInstanceInitialize(TRITONBACKEND_ModelInstance *instance) {
    instance_state *state = calloc(1, sizeof *state);
    if (!state) return refuse(TRITONSERVER_ERROR_INTERNAL, "cuts", "needs more memory");
    TRITONSERVER_Error *error = open_instance(instance, state);
    if (!error) error = TRITONBACKEND_ModelInstanceSetState(instance, state);
    if (!error) return NULL;
    cuts_session_destroy(state->session);
    free(state);
    return error;
}

TRITONBACKEND_ISPEC TRITONSERVER_Error *TRITONBACKEND_ModelInstanceFinalize(TRITONBACKEND_ModelInstance *instance) {
    instance_state *state = NULL;
    TRY_TRITON(TRITONBACKEND_ModelInstanceState(instance, (void **)&state));
    if (state) cuts_session_destroy(state->session);
    free(state);
    return NULL;
}

/* Puts the parts of an input into one block of memory. */
static TRITONSERVER_Error *join_buffers(TRITONBACKEND_Input *input, const cuts_tensor_info *info, uint32_t count,
                                        void **joined) {
    uint64_t used = 0;
    *joined = malloc(info->nbytes + 1);
    if (!*joined) return refuse(TRITONSERVER_ERROR_INTERNAL, info->name, "needs more memory");
    for (uint32_t n = 0; n < count; n++) {
        const void *part = NULL;
        uint64_t nbytes = 0;
        TRITONSERVER_MemoryType place = TRITONSERVER_MEMORY_CPU;
        int64_t device = 0;
        TRY_TRITON(TRITONBACKEND_InputBuffer(input, n, &part, &nbytes, &place, &device));
        if (place == TRITONSERVER_MEMORY_GPU)
            return refuse(TRITONSERVER_ERROR_UNSUPPORTED, info->name, "lies on a GPU, expected host memory");
        if (nbytes > info->nbytes - used)
            return refuse(TRITONSERVER_ERROR_INVALID_ARG, info->name, "has too many bytes");
        memcpy((char *)*joined + used, part, nbytes);
        used += nbytes;
    }
    return NULL;
}

static TRITONSERVER_Error *take_input(TRITONBACKEND_Request *request, const cuts_tensor_info *info, void **data,
                                      void **owned) {
    TRITONBACKEND_Input *input = NULL;
    TRITONSERVER_DataType type;
    TRITONSERVER_MemoryType place = TRITONSERVER_MEMORY_CPU;
    const int64_t *shape = NULL;
    uint64_t nbytes = 0;
    uint32_t rank = 0, count = 0;
    int64_t device = 0;
    TRY_TRITON(TRITONBACKEND_RequestInput(request, info->name, &input));
    TRY_TRITON(TRITONBACKEND_InputProperties(input, NULL, &type, &shape, &rank, &nbytes, &count));
    if (type != data_type(info->dtype) || nbytes != info->nbytes)
        return refuse(TRITONSERVER_ERROR_INVALID_ARG, info->name, "has another type or size than the plan's");
    if (count == 1) {
        TRY_TRITON(TRITONBACKEND_InputBuffer(input, 0, (const void **)data, &nbytes, &place, &device));
        if (place != TRITONSERVER_MEMORY_GPU) return NULL;
    }
    TRY_TRITON(join_buffers(input, info, count, owned));
    *data = *owned;
    return NULL;
}

/* Makes memory for an output: the response's where the request wants it, otherwise memory of this run. */
static TRITONSERVER_Error *make_output(TRITONBACKEND_Request *request, TRITONBACKEND_Response *response,
                                       const cuts_tensor_info *info, void **data, void **owned) {
    TRITONBACKEND_Output *output = NULL;
    TRITONSERVER_MemoryType place = TRITONSERVER_MEMORY_CPU;
    const char *name = NULL;
    uint32_t count = 0;
    int64_t device = 0;
    int is_wanted = 0;
    TRY_TRITON(TRITONBACKEND_RequestOutputCount(request, &count));
    for (uint32_t n = 0; n < count && !is_wanted; n++) {
        TRY_TRITON(TRITONBACKEND_RequestOutputName(request, n, &name));
        is_wanted = strcmp(name, info->name) == 0;
    }
    if (!is_wanted) {
        *data = *owned = malloc(info->nbytes + 1);
        return *data ? NULL : refuse(TRITONSERVER_ERROR_INTERNAL, info->name, "needs more memory");
    }
    TRY_TRITON(TRITONBACKEND_ResponseOutput(response, &output, info->name, data_type(info->dtype), info->shape,
                                            (uint32_t)info->ndim));
    TRY_TRITON(TRITONBACKEND_OutputBuffer(output, data, info->nbytes, &place, &device));
    return place == TRITONSERVER_MEMORY_GPU
               ? refuse(TRITONSERVER_ERROR_UNSUPPORTED, info->name, "lies on a GPU, expected host memory")
               : NULL;
}

static TRITONSERVER_Error *run_request(const instance_state *state, TRITONBACKEND_Request *request,
                                       TRITONBACKEND_Response *response, const request_tensors *tensors) {
    uint32_t input_count = state->info.inputs, output_count = state->info.outputs;
    for (uint32_t n = 0; n < input_count + output_count; n++) {
        cuts_tensor_info info;
        int is_input = n < input_count;
        TRY_PLAN(cuts_plan_tensor(state->plan, is_input ? CUTS_INPUT : CUTS_OUTPUT, is_input ? n : n - input_count,
                                  &info));
        tensors->nbytes[n] = info.nbytes;
        if (is_input)
            TRY_TRITON(take_input(request, &info, tensors->data + n, tensors->owned + n));
        else
            TRY_TRITON(make_output(request, response, &info, tensors->data + n, tensors->owned + n));
    }
    TRY_PLAN(cuts_session_run_host(state->session, (const void *const *)tensors->data, tensors->nbytes, input_count,
                                   tensors->data + input_count, tensors->nbytes + input_count, output_count));
    return NULL;
}

static TRITONSERVER_Error *answer(const instance_state *state, TRITONBACKEND_Request *request,
                                  TRITONBACKEND_Response *response) {
    size_t count = (size_t)state->info.inputs + state->info.outputs;
    request_tensors tensors = {calloc(count + 1, sizeof(void *)), calloc(count + 1, sizeof(void *)),
                               calloc(count + 1, sizeof(uint64_t))};
    TRITONSERVER_Error *error = tensors.data && tensors.owned && tensors.nbytes
                                    ? run_request(state, request, response, &tensors)
                                    : refuse(TRITONSERVER_ERROR_INTERNAL, "cuts", "needs more memory");
    for (size_t n = 0; tensors.owned && n < count; n++) free(tensors.owned[n]);
    free(tensors.data);
    free(tensors.owned);
    free(tensors.nbytes);
    return error;
}

static void drop(TRITONSERVER_Error *error) {
    if (error) TRITONSERVER_ErrorDelete(error);
}

/* Answers a request; an error becomes the response. */
static void execute(TRITONBACKEND_ModelInstance *instance, const instance_state *state,
                    TRITONBACKEND_Request *request) {
    TRITONBACKEND_Response *response = NULL;
    uint64_t begin = nanoseconds();
    TRITONSERVER_Error *error = TRITONBACKEND_ResponseNew(&response, request);
    if (!error) error = answer(state, request, response);
    uint64_t end = nanoseconds();
    if (response) drop(TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, error));
    drop(TRITONBACKEND_ModelInstanceReportStatistics(instance, request, !error, begin, begin, end, end));
    drop(error);
    drop(TRITONBACKEND_RequestRelease(request, TRITONSERVER_REQUEST_RELEASE_ALL));
}

TRITONBACKEND_ISPEC TRITONSERVER_Error *TRITONBACKEND_ModelInstanceExecute(TRITONBACKEND_ModelInstance *instance,
                                                                           TRITONBACKEND_Request **requests,
                                                                           const uint32_t count) {
    instance_state *state = NULL;
    TRY_TRITON(TRITONBACKEND_ModelInstanceState(instance, (void **)&state));
    for (uint32_t n = 0; n < count; n++) execute(instance, state, requests[n]);
    return NULL;
}
