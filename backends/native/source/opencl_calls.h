/* The functions of OpenCL 1.2 that this library calls, with the numbers of their enumerations. */
#ifndef CUTS_OPENCL_CALLS_H
#define CUTS_OPENCL_CALLS_H

#include <stddef.h>
#include <stdint.h>

typedef struct _cl_platform_id *cl_platform_id;
typedef struct _cl_device_id *cl_device_id;
typedef struct _cl_context *cl_context;
typedef struct _cl_command_queue *cl_command_queue;
typedef struct _cl_mem *cl_mem;
typedef struct _cl_program *cl_program;
typedef struct _cl_kernel *cl_kernel;
typedef struct _cl_event *cl_event;
typedef int32_t cl_int;
typedef uint32_t cl_uint;
typedef uint64_t cl_bitfield;

enum {
    CL_SUCCESS = 0,
    CL_TRUE = 1,
    CL_PLATFORM_VERSION = 0x0901,
    CL_PLATFORM_NAME = 0x0902,
    CL_DEVICE_NAME = 0x102B,
    CL_DEVICE_HOST_UNIFIED_MEMORY = 0x1035,
    CL_CONTEXT_DEVICES = 0x1081,
    CL_PROGRAM_BUILD_LOG = 0x1183,
    CL_KERNEL_NUM_ARGS = 0x1191,
};
#define CL_DEVICE_TYPE_ALL 0xFFFFFFFFull
#define CL_MEM_READ_WRITE 1ull
#define CL_MEM_USE_HOST_PTR 8ull

/* Each function with its type: a row is a member of `opencl_calls` and a name in the library. */
#define OPENCL_FUNCTIONS(ROW)                                                                                      \
    ROW(cl_int, clGetPlatformIDs, (cl_uint, cl_platform_id *, cl_uint *))                                          \
    ROW(cl_int, clGetPlatformInfo, (cl_platform_id, cl_uint, size_t, void *, size_t *))                            \
    ROW(cl_int, clGetDeviceIDs, (cl_platform_id, cl_bitfield, cl_uint, cl_device_id *, cl_uint *))                 \
    ROW(cl_int, clGetDeviceInfo, (cl_device_id, cl_uint, size_t, void *, size_t *))                                \
    ROW(cl_context, clCreateContext,                                                                               \
        (const intptr_t *, cl_uint, const cl_device_id *, void (*)(const char *, const void *, size_t, void *),    \
         void *, cl_int *))                                                                                        \
    ROW(cl_int, clRetainContext, (cl_context))                                                                     \
    ROW(cl_int, clReleaseContext, (cl_context))                                                                    \
    ROW(cl_command_queue, clCreateCommandQueue, (cl_context, cl_device_id, cl_bitfield, cl_int *))                 \
    ROW(cl_int, clReleaseCommandQueue, (cl_command_queue))                                                         \
    ROW(cl_mem, clCreateBuffer, (cl_context, cl_bitfield, size_t, void *, cl_int *))                               \
    ROW(cl_int, clRetainMemObject, (cl_mem))                                                                       \
    ROW(cl_int, clReleaseMemObject, (cl_mem))                                                                      \
    ROW(cl_program, clCreateProgramWithSource, (cl_context, cl_uint, const char **, const size_t *, cl_int *))     \
    ROW(cl_int, clBuildProgram,                                                                                    \
        (cl_program, cl_uint, const cl_device_id *, const char *, void (*)(cl_program, void *), void *))           \
    ROW(cl_int, clGetProgramBuildInfo, (cl_program, cl_device_id, cl_uint, size_t, void *, size_t *))              \
    ROW(cl_int, clReleaseProgram, (cl_program))                                                                    \
    ROW(cl_kernel, clCreateKernel, (cl_program, const char *, cl_int *))                                           \
    ROW(cl_int, clGetKernelInfo, (cl_kernel, cl_uint, size_t, void *, size_t *))                                   \
    ROW(cl_int, clSetKernelArg, (cl_kernel, cl_uint, size_t, const void *))                                        \
    ROW(cl_int, clReleaseKernel, (cl_kernel))                                                                      \
    ROW(cl_int, clEnqueueNDRangeKernel,                                                                            \
        (cl_command_queue, cl_kernel, cl_uint, const size_t *, const size_t *, const size_t *, cl_uint,            \
         const cl_event *, cl_event *))                                                                            \
    ROW(cl_int, clEnqueueFillBuffer,                                                                               \
        (cl_command_queue, cl_mem, const void *, size_t, size_t, size_t, cl_uint, const cl_event *, cl_event *))   \
    ROW(cl_int, clEnqueueWriteBuffer,                                                                              \
        (cl_command_queue, cl_mem, cl_uint, size_t, size_t, const void *, cl_uint, const cl_event *, cl_event *))  \
    ROW(cl_int, clEnqueueReadBuffer,                                                                               \
        (cl_command_queue, cl_mem, cl_uint, size_t, size_t, void *, cl_uint, const cl_event *, cl_event *))        \
    ROW(cl_int, clEnqueueCopyBufferRect,                                                                           \
        (cl_command_queue, cl_mem, cl_mem, const size_t *, const size_t *, const size_t *, size_t, size_t, size_t, \
         size_t, cl_uint, const cl_event *, cl_event *))                                                           \
    ROW(cl_int, clFinish, (cl_command_queue))

#define OPENCL_MEMBER(type, name, parameters) type(*name) parameters;
#define OPENCL_NAME(type, name, parameters) #name,

typedef struct opencl_calls {
    OPENCL_FUNCTIONS(OPENCL_MEMBER)
} opencl_calls;

#endif
