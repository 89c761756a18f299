/* Packed plans as functions of tvm-ffi: `load_module("libcuts_tvm_ffi.so").run(x, ..., y, ...)`.
 *
 * The plan is `model.cutsplan` beside this library. Its arguments are the inputs and then the outputs, as tensors of
 * the plan's kind of device; the first one's number chooses the device, and runs are ordered on its current stream.
 * Each device has one session, whose runs exclude each other.
 */
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuts_run.h"
#include "tvm_ffi_calls.h"

enum { MAX_DEVICES = 64, CUDA = 2 };

typedef struct opened_plan {
    cuts_plan *plan;
    cuts_session *session;
    cuts_plan_info info;
} opened_plan;

static opened_plan plans[MAX_DEVICES]; /* by number of the device */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static int raise_error(const char *kind, const char *text) {
    TVMFFIErrorSetRaisedFromCStr(kind, text);
    return -1;
}

static cuts_status open_plan(int32_t ordinal, opened_plan *opened) {
    char path[PATH_MAX] = "model.cutsplan";
    cuts_options options;
    Dl_info own;
    const char *end = NULL;
    if (dladdr((void *)(uintptr_t)open_plan, &own)) end = strrchr(own.dli_fname, '/');
    if (end) snprintf(path, sizeof path, "%.*s/model.cutsplan", (int)(end - own.dli_fname), own.dli_fname);
    cuts_options_default(&options);
    options.ordinal = ordinal;
    cuts_status status = cuts_plan_open(path, &options, &opened->plan);
    if (status == CUTS_OK) status = cuts_plan_describe(opened->plan, &opened->info);
    if (status == CUTS_OK) status = cuts_session_create(opened->plan, &opened->session);
    if (status != CUTS_OK) {
        cuts_plan_close(opened->plan);
        *opened = (opened_plan){0};
    }
    return status;
}

/* Returns the tensor of an argument; null for another value. */
static const cuts_tensor *tensor_of(const tvm_ffi_value *value) {
    if (value->type == TVM_FFI_TENSOR_POINTER) return value->pointer;
    if (value->type == TVM_FFI_TENSOR) return (const cuts_tensor *)((tvm_ffi_object *)value->pointer + 1);
    return NULL;
}

static int run_plan(const opened_plan *opened, const cuts_tensor *tensors, int32_t count) {
    char text[256];
    uint32_t inputs = opened->info.inputs, outputs = opened->info.outputs;
    if (count != (int32_t)(inputs + outputs)) {
        snprintf(text, sizeof text, "plan '%s' has %u inputs and %u outputs, found %d arguments", opened->info.name,
                 inputs, outputs, (int)count);
        return raise_error("TypeError", text);
    }
    cuts_device device = tensors[0].device;
    void *stream = device.type == CUDA ? TVMFFIEnvGetStream(device.type, device.ordinal) : NULL;
    if (cuts_session_run(opened->session, tensors, inputs, tensors + inputs, outputs, stream))
        return raise_error("ValueError", cuts_last_error());
    return 0;
}

static int call(const tvm_ffi_value *arguments, int32_t count) {
    cuts_tensor *tensors = malloc((size_t)count * sizeof *tensors);
    int result = tensors ? 0 : raise_error("MemoryError", "too little memory");
    for (int32_t n = 0; n < count && !result; n++) {
        const cuts_tensor *tensor = tensor_of(arguments + n);
        if (tensor)
            tensors[n] = *tensor;
        else
            result = raise_error("TypeError", "expected tensors: the inputs of the plan, then its outputs");
    }
    int32_t ordinal = result ? 0 : tensors[0].device.type == CUDA ? tensors[0].device.ordinal : 0;
    if (!result && (ordinal < 0 || ordinal >= MAX_DEVICES))
        result = raise_error("ValueError", "there is no device of that number");
    if (!result) {
        pthread_mutex_lock(&mutex);
        if (!plans[ordinal].session && open_plan(ordinal, plans + ordinal))
            result = raise_error("RuntimeError", cuts_last_error());
        pthread_mutex_unlock(&mutex);
    }
    if (!result) result = run_plan(plans + ordinal, tensors, count);
    free(tensors);
    return result;
}

/* Runs the plan: the function `run` of the module. */
CUTS_API int __tvm_ffi_run(void *self, const tvm_ffi_value *arguments, int32_t count, tvm_ffi_value *result) {
    (void)self, (void)result; /* none, as the caller has set it */
    if (count < 1) return raise_error("TypeError", "expected tensors: the inputs of the plan, then its outputs");
    return call(arguments, count);
}
