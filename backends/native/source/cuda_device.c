/* Choice of a GPU, its memory and its modules. */
#include "cuda_device.h"

#include <stdlib.h>
#include <string.h>

#include "status.h"

enum { MAX_NAME = 256 };

static const char DEFAULT_LIBRARY[] = "libcuda.so.1";

cuts_status check_cuda(const cuda_device *device, cuda_result code, const char *call) {
    const char *name = NULL;
    if (!code) return CUTS_OK;
    if (device->cu.cuGetErrorName(code, &name) || !name) name = "unknown error";
    return fail(code == CUDA_OUT_OF_MEMORY ? CUTS_ERROR_MEMORY : CUTS_ERROR_DRIVER, "CUDA: %s: %s (%d)", call, name,
                code);
}

cuts_status enter_context(const cuda_device *device) {
    return check_cuda(device, device->cu.cuCtxPushCurrent_v2(device->context), "cuCtxPushCurrent");
}

void leave_context(const cuda_device *device) {
    cuda_context left;
    device->cu.cuCtxPopCurrent_v2(&left);
}

/* Cubins run on the architecture that they are made for, and on later minor versions of it. */
static cuts_status check_architecture(const cuda_device *device, const plan_file *file) {
    int wanted = (int)file->info->capability, found = device->capability;
    char name[MAX_NAME] = "";
    if (wanted / 10 == found / 10 && wanted % 10 <= found % 10) return CUTS_OK;
    device->cu.cuDeviceGetName(name, sizeof name, device->id);
    return fail(CUTS_ERROR_ARCHITECTURE, "the plan is for sm_%d (%s), device %s is sm_%d: compile the model for it",
                wanted, text_of(file, file->info->target), name, found);
}

static cuts_status read_attributes(cuda_device *device) {
    int major = 0, minor = 0;
    const cuda_calls *cu = &device->cu;
    TRY(check_cuda(device, cu->cuDeviceGetAttribute(&major, CUDA_CAPABILITY_MAJOR, device->id),
                   "cuDeviceGetAttribute"));
    TRY(check_cuda(device, cu->cuDeviceGetAttribute(&minor, CUDA_CAPABILITY_MINOR, device->id),
                   "cuDeviceGetAttribute"));
    device->capability = 10 * major + minor;
    if (!cu->cuGraphKernelNodeSetAttribute ||
        cu->cuDeviceGetAttribute(&device->window_bytes, CUDA_WINDOW_BYTES, device->id))
        device->window_bytes = 0; /* a device without the policy is only slower */
    return CUTS_OK;
}

/* Refuses kernels for a device with more shared memory before any is launched. */
static cuts_status check_shared(const cuda_device *device, const plan_file *file) {
    int limit = 0;
    if (device->cu.cuDeviceGetAttribute(&limit, CUDA_SHARED_BYTES_OPTIN, device->id)) return CUTS_OK;
    for (uint64_t n = 0; n < file->kernel_count; n++) {
        const kernel_record *kernel = file->kernels + n;
        uint64_t needed = (uint64_t)kernel->static_shared + kernel->dynamic_shared;
        if (needed > (uint64_t)limit)
            return fail(CUTS_ERROR_ARCHITECTURE,
                        "kernel %s needs %llu bytes of shared memory a block, the device has %d",
                        text_of(file, kernel->name), (unsigned long long)needed, limit);
    }
    return CUTS_OK;
}

/* Keeps the caller's functions for kernels without a program. */
static cuts_status keep_functions(cuda_device *device, const cuts_options *options, const plan_file *file) {
    device->functions = calloc(file->kernel_count + 1, sizeof *device->functions);
    if (!device->functions) return fail(CUTS_ERROR_MEMORY, "too little memory to open a plan");
    for (uint64_t n = 0; n < file->kernel_count; n++) {
        if (file->kernels[n].program != NO_NUMBER) continue;
        if (!options->functions || !options->functions[n])
            return fail(CUTS_ERROR_ARGUMENT, "kernel %s has no program: cuts_options.functions lacks it",
                        text_of(file, file->kernels[n].name));
        device->functions[n] = options->functions[n];
    }
    return CUTS_OK;
}

static cuts_status load_modules(cuda_device *device, const plan_file *file) {
    device->modules = calloc(file->program_count + 1, sizeof *device->modules);
    if (!device->modules) return fail(CUTS_ERROR_MEMORY, "too little memory to open a plan");
    device->module_count = file->program_count;
    for (uint64_t n = 0; n < file->program_count; n++)
        TRY(check_cuda(device, device->cu.cuModuleLoadData(device->modules + n, file->data + file->programs[n].data),
                       "cuModuleLoadData"));
    return CUTS_OK;
}

static cuts_status open_context(cuda_device *device, const cuts_options *options, const plan_file *file) {
    const cuda_calls *cu = &device->cu;
    TRY(keep_functions(device, options, file));
    TRY(check_cuda(device, cu->cuInit(0), "cuInit"));
    TRY(check_cuda(device, cu->cuDeviceGet(&device->id, options->ordinal), "cuDeviceGet"));
    TRY(read_attributes(device));
    TRY(check_architecture(device, file));
    TRY(check_shared(device, file));
    return check_cuda(device, cu->cuDevicePrimaryCtxRetain(&device->context, device->id), "cuDevicePrimaryCtxRetain");
}

static cuts_status fill_device(cuda_device *device, const cuts_options *options, const plan_file *file) {
    static const char *const names[] = {CUDA_FUNCTIONS(CUDA_NAME) CUDA_OPTIONAL_FUNCTIONS(CUDA_NAME)};
    static const char *const newer[] = {CUDA_OPTIONAL_FUNCTIONS(CUDA_NAME)};
    int count = sizeof names / sizeof *names, optional = sizeof newer / sizeof *newer;
    void *functions[sizeof names / sizeof *names];
    const char *path = options->library ? options->library : DEFAULT_LIBRARY;
    TRY(load_functions(path, names, functions, count - optional, count, &device->library));
    memcpy(&device->cu, functions, sizeof device->cu);
    return open_context(device, options, file);
}

static cuts_status load_cuda(device *base, const plan_file *file) {
    cuda_device *device = (cuda_device *)base;
    TRY(enter_context(device));
    cuts_status status = load_modules(device, file);
    leave_context(device);
    return status;
}

static void close_cuda(device *base) {
    cuda_device *device = (cuda_device *)base;
    if (device->context && enter_context(device) == CUTS_OK) {
        for (uint64_t n = 0; n < device->module_count; n++)
            if (device->modules[n]) device->cu.cuModuleUnload(device->modules[n]);
        leave_context(device);
    }
    if (device->context) device->cu.cuDevicePrimaryCtxRelease_v2(device->id);
    /* The library stays open: the driver has threads that do not end with it. */
    free(device->functions);
    free(device->modules);
    free(device);
}

static cuts_status open_cuda(const cuts_options *options, const plan_file *file, device **opened) {
    cuda_device *device = calloc(1, sizeof *device);
    if (!device) return fail(CUTS_ERROR_MEMORY, "too little memory to open a plan");
    device->base.calls = &CUDA_DRIVER;
    cuts_status status = fill_device(device, options, file);
    if (status == CUTS_OK)
        *opened = &device->base;
    else
        close_cuda(&device->base);
    return status;
}

static cuts_status allocate_within(const cuda_device *device, uint64_t nbytes, device_memory *memory) {
    uint64_t room = nbytes ? nbytes : 1; /* CUDA has no empty allocations */
    TRY(check_cuda(device, device->cu.cuMemAlloc_v2(memory, room), "cuMemAlloc"));
    TRY(check_cuda(device, device->cu.cuMemsetD8_v2(*memory, 0, room), "cuMemsetD8"));
    return check_cuda(device, device->cu.cuCtxSynchronize(), "cuCtxSynchronize");
}

static cuts_status allocate_cuda(device *base, uint64_t nbytes, device_memory *memory) {
    const cuda_device *device = (cuda_device *)base;
    TRY(enter_context(device));
    cuts_status status = allocate_within(device, nbytes, memory);
    leave_context(device);
    return status;
}

static void release_cuda(device *base, device_memory memory) {
    const cuda_device *device = (cuda_device *)base;
    if (enter_context(device) != CUTS_OK) return;
    device->cu.cuMemFree_v2(memory);
    leave_context(device);
}

static cuts_status upload_cuda(device *base, device_memory target, uint64_t offset, const void *source,
                               uint64_t nbytes) {
    const cuda_device *device = (cuda_device *)base;
    if (!nbytes) return CUTS_OK;
    TRY(enter_context(device));
    cuts_status status =
        check_cuda(device, device->cu.cuMemcpyHtoD_v2(target + offset, source, nbytes), "cuMemcpyHtoD");
    leave_context(device);
    return status;
}

static cuts_status download_cuda(device *base, void *target, device_memory source, uint64_t offset, uint64_t nbytes) {
    const cuda_device *device = (cuda_device *)base;
    if (!nbytes) return CUTS_OK;
    TRY(enter_context(device));
    cuts_status status =
        check_cuda(device, device->cu.cuMemcpyDtoH_v2(target, source + offset, nbytes), "cuMemcpyDtoH");
    leave_context(device);
    return status;
}

static cuts_status adopt_cuda(device *base, const cuts_device *place, void *data, uint64_t nbytes,
                              device_memory *memory) {
    (void)base;
    if (place && place->type != CUDA_DEVICE && nbytes)
        return fail(CUTS_ERROR_TENSOR, "a tensor lies on a device of DLPack's type %d, expected %d (CUDA)",
                    (int)place->type, CUDA_DEVICE);
    *memory = (device_memory)(uintptr_t)data;
    return CUTS_OK;
}

static void disown_cuda(device *base, device_memory memory) {
    (void)base, (void)memory;
}

static int shares_host_memory_cuda(const device *base) {
    (void)base;
    return 0;
}

const driver_calls CUDA_DRIVER = {
    .device_type = CUDA_DEVICE,
    .shares_host_memory = shares_host_memory_cuda,
    .open = open_cuda,
    .load = load_cuda,
    .close = close_cuda,
    .allocate = allocate_cuda,
    .release = release_cuda,
    .upload = upload_cuda,
    .download = download_cuda,
    .adopt = adopt_cuda,
    .disown = disown_cuda,
    .prepare = prepare_cuda,
    .launch = launch_cuda,
    .set_child = set_child,
    .wait = wait_cuda,
    .discard = discard_cuda,
};
