/* Choice of an OpenCL device, its memory and its programs. */
#include "opencl_device.h"

#include <stdlib.h>
#include <string.h>

#include "status.h"

enum { MAX_PLATFORMS = 16, MAX_DEVICES = 64, MAX_NAME = 256, MAX_LOG = 600 };

static const char DEFAULT_LIBRARY[] = "libOpenCL.so.1";

/* Names of the errors that a caller can do something about. */
static const char *error_name(cl_int code) {
    switch (code) {
        case -4: return "CL_MEM_OBJECT_ALLOCATION_FAILURE";
        case -5: return "CL_OUT_OF_RESOURCES";
        case -6: return "CL_OUT_OF_HOST_MEMORY";
        case -11: return "CL_BUILD_PROGRAM_FAILURE";
        case -36: return "CL_INVALID_COMMAND_QUEUE";
        case -37: return "CL_INVALID_HOST_PTR";
        case -38: return "CL_INVALID_MEM_OBJECT";
        case -46: return "CL_INVALID_KERNEL_NAME";
        case -54: return "CL_INVALID_WORK_GROUP_SIZE";
        case -61: return "CL_INVALID_BUFFER_SIZE";
        default: return "error";
    }
}

cuts_status check_opencl(cl_int code, const char *call) {
    if (code == CL_SUCCESS) return CUTS_OK;
    cuts_status status = code == -4 || code == -6 || code == -61 ? CUTS_ERROR_MEMORY : CUTS_ERROR_DRIVER;
    return fail(status, "OpenCL: %s: %s (%d)", call, error_name(code), (int)code);
}

static int has_name(const opencl_calls *cl, cl_platform_id platform, const char *part) {
    char text[MAX_NAME] = "";
    if (!part || !*part) return 1;
    for (cl_uint what = CL_PLATFORM_VERSION; what <= CL_PLATFORM_NAME; what++)
        if (cl->clGetPlatformInfo(platform, what, sizeof text, text, NULL) == CL_SUCCESS && strstr(text, part))
            return 1;
    return 0;
}

/* Finds device number `ordinal` of the first platform with that part of a name that has devices. */
static cuts_status choose_device(opencl_device *device, const cuts_options *options) {
    const opencl_calls *cl = &device->cl;
    cl_platform_id platforms[MAX_PLATFORMS];
    cl_uint count = 0;
    TRY(check_opencl(cl->clGetPlatformIDs(MAX_PLATFORMS, platforms, &count), "clGetPlatformIDs"));
    for (cl_uint n = 0; n < count && n < MAX_PLATFORMS; n++) {
        cl_device_id found[MAX_DEVICES];
        cl_uint devices = 0;
        if (!has_name(cl, platforms[n], options->platform)) continue;
        if (cl->clGetDeviceIDs(platforms[n], CL_DEVICE_TYPE_ALL, MAX_DEVICES, found, &devices) != CL_SUCCESS) continue;
        if ((cl_uint)options->ordinal >= devices || options->ordinal >= MAX_DEVICES) continue;
        device->id = found[options->ordinal];
        return CUTS_OK;
    }
    return fail(CUTS_ERROR_DRIVER, "OpenCL has no device %d of platform '%s': %u platforms were found",
                (int)options->ordinal, options->platform ? options->platform : "", count);
}

static cuts_status open_context(opencl_device *device, const cuts_options *options) {
    cl_int code = CL_SUCCESS;
    if (options->context) {
        if (!options->device) return fail(CUTS_ERROR_ARGUMENT, "cuts_options.context has no cuts_options.device");
        device->id = options->device;
        TRY(check_opencl(device->cl.clRetainContext(options->context), "clRetainContext"));
        device->context = options->context;
    } else {
        TRY(choose_device(device, options));
        device->context = device->cl.clCreateContext(NULL, 1, &device->id, NULL, NULL, &code);
        TRY(check_opencl(code, "clCreateContext"));
    }
    device->queue = device->cl.clCreateCommandQueue(device->context, device->id, 0, &code);
    TRY(check_opencl(code, "clCreateCommandQueue"));
    cl_uint shares = 0;
    device->cl.clGetDeviceInfo(device->id, CL_DEVICE_HOST_UNIFIED_MEMORY, sizeof shares, &shares, NULL);
    device->shares_host_memory = shares != 0;
    return CUTS_OK;
}

static cuts_status report_build(opencl_device *device, cl_program program, cl_int code, uint64_t number) {
    char log[MAX_LOG] = "", *whole = NULL;
    size_t nbytes = 0;
    device->cl.clGetProgramBuildInfo(program, device->id, CL_PROGRAM_BUILD_LOG, 0, NULL, &nbytes);
    whole = calloc(nbytes + 1, 1);
    if (whole) {
        device->cl.clGetProgramBuildInfo(program, device->id, CL_PROGRAM_BUILD_LOG, nbytes, whole, NULL);
        strncpy(log, whole, sizeof log - 1);
    }
    free(whole);
    return fail(CUTS_ERROR_DRIVER, "OpenCL: program %llu does not build: %s (%d): %s", (unsigned long long)number,
                error_name(code), (int)code, log);
}

static cuts_status build_program(opencl_device *device, const plan_file *file, uint64_t number) {
    const char *text = (const char *)file->data + file->programs[number].data;
    size_t length = file->programs[number].nbytes;
    cl_int code = CL_SUCCESS;
    cl_program program = device->cl.clCreateProgramWithSource(device->context, 1, &text, &length, &code);
    TRY(check_opencl(code, "clCreateProgramWithSource"));
    device->programs[number] = program;
    const char *options = text_of(file, file->info->options);
    code = device->cl.clBuildProgram(program, 1, &device->id, options, NULL, NULL);
    return code == CL_SUCCESS ? CUTS_OK : report_build(device, program, code, number);
}

static void close_opencl(device *base) {
    opencl_device *device = (opencl_device *)base;
    for (uint64_t n = 0; n < device->program_count; n++)
        if (device->programs[n]) device->cl.clReleaseProgram(device->programs[n]);
    if (device->queue) device->cl.clReleaseCommandQueue(device->queue);
    if (device->context) device->cl.clReleaseContext(device->context);
    /* The library stays open: drivers have threads that do not end with it. */
    free(device->programs);
    free(device);
}

static cuts_status fill_device(opencl_device *device, const cuts_options *options) {
    static const char *const names[] = {OPENCL_FUNCTIONS(OPENCL_NAME)};
    int count = sizeof names / sizeof *names;
    void *functions[sizeof names / sizeof *names];
    const char *path = options->library ? options->library : DEFAULT_LIBRARY;
    TRY(load_functions(path, names, functions, count, count, &device->library));
    memcpy(&device->cl, functions, sizeof device->cl);
    return open_context(device, options);
}

static cuts_status load_opencl(device *base, const plan_file *file) {
    opencl_device *device = (opencl_device *)base;
    device->programs = calloc(file->program_count + 1, sizeof *device->programs);
    if (!device->programs) return fail(CUTS_ERROR_MEMORY, "too little memory to open a plan");
    device->program_count = file->program_count;
    for (uint64_t n = 0; n < file->program_count; n++) TRY(build_program(device, file, n));
    return CUTS_OK;
}

static cuts_status open_opencl(const cuts_options *options, const plan_file *file, device **opened) {
    (void)file;
    opencl_device *device = calloc(1, sizeof *device);
    if (!device) return fail(CUTS_ERROR_MEMORY, "too little memory to open a plan");
    device->base.calls = &OPENCL_DRIVER;
    cuts_status status = fill_device(device, options);
    if (status == CUTS_OK)
        *opened = &device->base;
    else
        close_opencl(&device->base);
    return status;
}

static cuts_status fill_with_zeros(opencl_device *device, cl_mem memory, uint64_t nbytes) {
    uint8_t zero = 0;
    TRY(check_opencl(device->cl.clEnqueueFillBuffer(device->queue, memory, &zero, 1, 0, nbytes, 0, NULL, NULL),
                     "clEnqueueFillBuffer"));
    return check_opencl(device->cl.clFinish(device->queue), "clFinish");
}

static cuts_status allocate_opencl(device *base, uint64_t nbytes, device_memory *memory) {
    opencl_device *device = (opencl_device *)base;
    cl_int code = CL_SUCCESS;
    uint64_t room = nbytes ? nbytes : 1; /* OpenCL has no empty buffers */
    cl_mem made = device->cl.clCreateBuffer(device->context, CL_MEM_READ_WRITE, room, NULL, &code);
    TRY(check_opencl(code, "clCreateBuffer"));
    *memory = (device_memory)(uintptr_t)made;
    return fill_with_zeros(device, made, room);
}

static void release_opencl(device *base, device_memory memory) {
    ((opencl_device *)base)->cl.clReleaseMemObject((cl_mem)(uintptr_t)memory);
}

static cuts_status upload_opencl(device *base, device_memory target, uint64_t offset, const void *source,
                                 uint64_t nbytes) {
    opencl_device *device = (opencl_device *)base;
    if (!nbytes) return CUTS_OK;
    return check_opencl(device->cl.clEnqueueWriteBuffer(device->queue, (cl_mem)(uintptr_t)target, CL_TRUE, offset,
                                                        nbytes, source, 0, NULL, NULL),
                        "clEnqueueWriteBuffer");
}

static cuts_status download_opencl(device *base, void *target, device_memory source, uint64_t offset, uint64_t nbytes) {
    opencl_device *device = (opencl_device *)base;
    if (!nbytes) return CUTS_OK;
    return check_opencl(device->cl.clEnqueueReadBuffer(device->queue, (cl_mem)(uintptr_t)source, CL_TRUE, offset,
                                                       nbytes, target, 0, NULL, NULL),
                        "clEnqueueReadBuffer");
}

/* Kernels use host memory where it lies; the buffer around it is made again where the caller's memory moves. */
static cuts_status adopt_opencl(device *base, const cuts_device *place, void *data, uint64_t nbytes,
                                device_memory *memory) {
    opencl_device *device = (opencl_device *)base;
    cl_int code = CL_SUCCESS;
    if (!nbytes) return allocate_opencl(base, 0, memory);
    if (place && place->type == OPENCL_DEVICE) {
        *memory = (device_memory)(uintptr_t)data;
        return check_opencl(device->cl.clRetainMemObject(data), "clRetainMemObject");
    }
    if (place && place->type != HOST_DEVICE)
        return fail(CUTS_ERROR_TENSOR,
                    "a tensor lies on a device of DLPack's type %d, expected %d (host) or %d (OpenCL)",
                    (int)place->type, HOST_DEVICE, OPENCL_DEVICE);
    if (!device->shares_host_memory)
        return fail(CUTS_ERROR_TENSOR, "the OpenCL device does not share the host's memory: pass cl_mem objects");
    cl_mem made =
        device->cl.clCreateBuffer(device->context, CL_MEM_READ_WRITE | CL_MEM_USE_HOST_PTR, nbytes, data, &code);
    *memory = (device_memory)(uintptr_t)made;
    return check_opencl(code, "clCreateBuffer");
}

static int shares_host_memory_opencl(const device *base) {
    return ((const opencl_device *)base)->shares_host_memory;
}

const driver_calls OPENCL_DRIVER = {
    .device_type = OPENCL_DEVICE,
    .shares_host_memory = shares_host_memory_opencl,
    .open = open_opencl,
    .load = load_opencl,
    .close = close_opencl,
    .allocate = allocate_opencl,
    .release = release_opencl,
    .upload = upload_opencl,
    .download = download_opencl,
    .adopt = adopt_opencl,
    .disown = release_opencl,
    .prepare = prepare_opencl,
    .launch = launch_opencl,
    .wait = wait_opencl,
    .discard = discard_opencl,
};
