/* Packed plans in ONNX Runtime: the operation `Plan` of the domain `cuts`, which runs a plan as one node.
 *
 *     node {op_type: "Plan", domain: "cuts", attribute file: "model.cutsplan"}
 *
 * The file lies beside this library, unless its path is absolute. The provider of processors gives host memory, which
 * any device takes; that of CUDA gives memory of its GPU and its stream. Runs of one node exclude each other.
 */
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuts_run.h"
#include "onnxruntime_calls.h"

/* Leaves the calling function with the status of a call of ONNX Runtime that failed. */
#define TRY_ORT(call)                  \
    do {                               \
        ort_status *status_ = (call);  \
        if (status_) return status_;   \
    } while (0)

/* The same for a call of libcuts_run. */
#define TRY_PLAN(api, call)                                                       \
    do {                                                                          \
        if ((call) != CUTS_OK) return report((api), cuts_last_error());           \
    } while (0)

typedef struct plan_kernel {
    const ort_api *api;
    cuts_plan *plan;
    cuts_session *session;
    cuts_plan_info info;
    int is_on_gpu; /* whether memory of ONNX Runtime is that of the GPU */
} plan_kernel;

/* Tensors of one run. */
typedef struct run_tensors {
    void **data;
    uint64_t *nbytes;
} run_tensors;

static ort_status *report(const ort_api *api, const char *text) {
    return ORT(api, ort_create_status, ORT_CREATE_STATUS)(ORT_FAIL, text);
}

/* The provider's number of an element type; 0 where it has none. */
static int element_type(cuts_dtype dtype) {
    static const struct {
        uint8_t code, bits;
        int type;
    } types[] = {{2, 32, 1},  {1, 8, 2},   {0, 8, 3},   {1, 16, 4},  {0, 16, 5},  {0, 32, 6},   {0, 64, 7},  {6, 8, 9},
                 {2, 16, 10}, {2, 64, 11}, {1, 32, 12}, {1, 64, 13}, {4, 16, 16}, {10, 8, 17}, {12, 8, 19}};
    for (size_t n = 0; n < sizeof types / sizeof *types; n++)
        if (types[n].code == dtype.code && types[n].bits == dtype.bits) return types[n].type;
    return 0;
}

/* Reads a text attribute; it stays empty where the node has none. */
static void read_text(const ort_api *api, const ort_info *info, const char *name, char *text, size_t size) {
    *text = 0;
    ort_status *status = ORT(api, ort_text_attribute, ORT_TEXT_ATTRIBUTE)(info, name, text, &size);
    if (status) {
        *text = 0;
        ORT(api, ort_release, ORT_RELEASE_STATUS)(status);
    }
}

static int64_t read_number(const ort_api *api, const ort_info *info, const char *name) {
    int64_t value = 0;
    ort_status *status = ORT(api, ort_int_attribute, ORT_INT_ATTRIBUTE)(info, name, &value);
    if (!status) return value;
    ORT(api, ort_release, ORT_RELEASE_STATUS)(status);
    return 0;
}

/* Puts the folder of this library before a relative path. */
static void find_file(const char *name, char *path) {
    Dl_info own;
    const char *end = NULL;
    if (*name != '/' && dladdr((void *)(uintptr_t)find_file, &own)) end = strrchr(own.dli_fname, '/');
    if (end)
        snprintf(path, PATH_MAX, "%.*s/%s", (int)(end - own.dli_fname), own.dli_fname, name);
    else
        snprintf(path, PATH_MAX, "%s", name);
}

static ort_status *open_plan(plan_kernel *kernel, const ort_info *info) {
    char name[PATH_MAX], path[PATH_MAX], library[PATH_MAX], platform[PATH_MAX];
    cuts_options options;
    cuts_options_default(&options);
    read_text(kernel->api, info, "file", name, sizeof name);
    read_text(kernel->api, info, "library", library, sizeof library);
    read_text(kernel->api, info, "platform", platform, sizeof platform);
    find_file(name, path);
    options.ordinal = (int32_t)read_number(kernel->api, info, "ordinal");
    options.library = *library ? library : NULL;
    options.platform = *platform ? platform : NULL;
    TRY_PLAN(kernel->api, cuts_plan_open(path, &options, &kernel->plan));
    TRY_PLAN(kernel->api, cuts_plan_describe(kernel->plan, &kernel->info));
    if (kernel->is_on_gpu && strcmp(kernel->info.dialect, "cuda"))
        return report(kernel->api, "the plan is for OpenCL, the node is on CUDA: use the provider of processors");
    TRY_PLAN(kernel->api, cuts_session_create(kernel->plan, &kernel->session));
    return NULL;
}

static void destroy_kernel(void *state) {
    plan_kernel *kernel = state;
    cuts_session_destroy(kernel->session);
    cuts_plan_close(kernel->plan);
    free(kernel);
}

static ort_status *create_kernel(const ort_op *op, const ort_api *api, const ort_info *info, void **created) {
    plan_kernel *kernel = calloc(1, sizeof *kernel);
    if (!kernel) return report(api, "too little memory for a plan");
    kernel->api = api;
    kernel->is_on_gpu = op->provider(op) != NULL;
    ort_status *status = open_plan(kernel, info);
    if (status)
        destroy_kernel(kernel);
    else
        *created = kernel;
    return status;
}

static ort_status *compare_shape(const plan_kernel *kernel, const cuts_tensor_info *expected, const ort_shape *shape) {
    const ort_api *api = kernel->api;
    char text[256];
    int type = 0;
    size_t rank = 0;
    int64_t extents[64];
    TRY_ORT(ORT(api, ort_element_type, ORT_ELEMENT_TYPE)(shape, &type));
    TRY_ORT(ORT(api, ort_rank, ORT_RANK)(shape, &rank));
    int is_same = type == element_type(expected->dtype) && rank == (size_t)expected->ndim && rank <= 64;
    if (is_same) TRY_ORT(ORT(api, ort_extents, ORT_EXTENTS)(shape, extents, rank));
    for (size_t n = 0; is_same && n < rank; n++) is_same = extents[n] == expected->shape[n];
    if (is_same) return NULL;
    snprintf(text, sizeof text, "input '%s' has another type or shape than that of plan '%s'", expected->name,
             kernel->info.name);
    return report(api, text);
}

static ort_status *take_input(const plan_kernel *kernel, ort_context *context, uint32_t number, run_tensors *inputs) {
    const ort_api *api = kernel->api;
    const ort_value *value = NULL;
    ort_shape *shape = NULL;
    cuts_tensor_info info;
    TRY_PLAN(api, cuts_plan_tensor(kernel->plan, CUTS_INPUT, number, &info));
    TRY_ORT(ORT(api, ort_input, ORT_INPUT)(context, number, &value));
    TRY_ORT(ORT(api, ort_shape_of, ORT_SHAPE_OF)(value, &shape));
    ort_status *status = compare_shape(kernel, &info, shape);
    ORT(api, ort_release, ORT_RELEASE_SHAPE)(shape);
    TRY_ORT(status);
    inputs->nbytes[number] = info.nbytes;
    return ORT(api, ort_data, ORT_DATA)((ort_value *)value, inputs->data + number);
}

static ort_status *make_output(const plan_kernel *kernel, ort_context *context, uint32_t number, run_tensors *outputs) {
    const ort_api *api = kernel->api;
    ort_value *value = NULL;
    cuts_tensor_info info;
    TRY_PLAN(api, cuts_plan_tensor(kernel->plan, CUTS_OUTPUT, number, &info));
    TRY_ORT(ORT(api, ort_output, ORT_OUTPUT)(context, number, info.shape, (size_t)info.ndim, &value));
    outputs->nbytes[number] = info.nbytes;
    return ORT(api, ort_data, ORT_DATA)(value, outputs->data + number);
}

static ort_status *run_plan(const plan_kernel *kernel, ort_context *context, run_tensors *inputs,
                            run_tensors *outputs) {
    const ort_api *api = kernel->api;
    uint32_t input_count = kernel->info.inputs, output_count = kernel->info.outputs;
    for (uint32_t n = 0; n < input_count; n++) TRY_ORT(take_input(kernel, context, n, inputs));
    for (uint32_t n = 0; n < output_count; n++) TRY_ORT(make_output(kernel, context, n, outputs));
    if (kernel->is_on_gpu) {
        void *stream = NULL;
        TRY_ORT(ORT(api, ort_stream, ORT_STREAM)(context, &stream));
        TRY_PLAN(api, cuts_session_run_pointers(kernel->session, inputs->data, inputs->nbytes, input_count,
                                                outputs->data, outputs->nbytes, output_count, stream));
    } else {
        TRY_PLAN(api, cuts_session_run_host(kernel->session, (const void *const *)inputs->data, inputs->nbytes,
                                            input_count, outputs->data, outputs->nbytes, output_count));
    }
    return NULL;
}

static ort_status *check_counts(const plan_kernel *kernel, const ort_context *context) {
    size_t inputs = 0, outputs = 0;
    char text[256];
    TRY_ORT(ORT(kernel->api, ort_count, ORT_INPUT_COUNT)(context, &inputs));
    TRY_ORT(ORT(kernel->api, ort_count, ORT_OUTPUT_COUNT)(context, &outputs));
    if (inputs == kernel->info.inputs && outputs == kernel->info.outputs) return NULL;
    snprintf(text, sizeof text, "plan '%s' has %u inputs and %u outputs, its node %zu and %zu", kernel->info.name,
             kernel->info.inputs, kernel->info.outputs, inputs, outputs);
    return report(kernel->api, text);
}

static ort_status *compute(void *state, ort_context *context) {
    const plan_kernel *kernel = state;
    TRY_ORT(check_counts(kernel, context));
    size_t count = (size_t)kernel->info.inputs + kernel->info.outputs;
    void **data = calloc(count + 1, sizeof *data);
    uint64_t *nbytes = calloc(count + 1, sizeof *nbytes);
    run_tensors inputs = {data, nbytes}, outputs = {data + kernel->info.inputs, nbytes + kernel->info.inputs};
    ort_status *status =
        data && nbytes ? run_plan(kernel, context, &inputs, &outputs) : report(kernel->api, "too little memory");
    free(data);
    free(nbytes);
    return status;
}

static const char *op_name(const ort_op *op) {
    (void)op;
    return "Plan";
}

static const char *on_processor(const ort_op *op) {
    (void)op;
    return NULL;
}

static const char *on_cuda(const ort_op *op) {
    (void)op;
    return "CUDAExecutionProvider";
}

static size_t one_parameter(const ort_op *op) {
    (void)op;
    return 1; /* which stands for any number of tensors */
}

static int any_type(const ort_op *op, size_t number) {
    (void)op, (void)number;
    return 0;
}

static int variadic(const ort_op *op, size_t number) {
    (void)op, (void)number;
    return ORT_VARIADIC;
}

static int default_memory(const ort_op *op, size_t number) {
    (void)op, (void)number;
    return 0;
}

static int none(const ort_op *op) {
    (void)op;
    return 0;
}

static int one(const ort_op *op) {
    (void)op;
    return 1;
}

static int any_version(const ort_op *op) {
    (void)op;
    return INT_MAX;
}

#define PLAN_OP(provider_function)                                                                             \
    {                                                                                                          \
        .version = ORT_VERSION, .name = op_name, .provider = provider_function, .input_type = any_type,        \
        .input_count = one_parameter, .output_type = any_type, .output_count = one_parameter,                  \
        .destroy = destroy_kernel, .input_kind = variadic, .output_kind = variadic,                            \
        .input_memory = default_memory, .min_inputs = none, .inputs_have_one_type = none, .min_outputs = one,  \
        .outputs_have_one_type = none, .try_create = create_kernel, .try_compute = compute,                    \
        .first_version = one, .last_version = any_version,                                                     \
    }

/* Adds the operation to the options of a session: the entry of each library of operations. */
CUTS_API ort_status *RegisterCustomOps(ort_options *options, const ort_base *base) {
    static const ort_op ops[] = {PLAN_OP(on_processor), PLAN_OP(on_cuda)};
    const ort_api *api = base->get_api(ORT_VERSION);
    ort_domain *domain = NULL;
    TRY_ORT(ORT(api, ort_create_domain, ORT_CREATE_DOMAIN)("cuts", &domain));
    for (size_t n = 0; n < sizeof ops / sizeof *ops; n++)
        TRY_ORT(ORT(api, ort_domain_add, ORT_DOMAIN_ADD)(domain, ops + n));
    return ORT(api, ort_add_domain, ORT_ADD_DOMAIN)(options, domain);
}
