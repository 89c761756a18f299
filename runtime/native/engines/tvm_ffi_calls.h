/* The part of tvm-ffi's C interface that is used here: no header of it is needed. */
#ifndef CUTS_TVM_FFI_CALLS_H
#define CUTS_TVM_FFI_CALLS_H

#include <stdint.h>

/* Types of values: a pointer to a `DLTensor`, and an object with one after its header. */
enum { TVM_FFI_TENSOR_POINTER = 7, TVM_FFI_TENSOR = 70 };

typedef struct tvm_ffi_value {
    int32_t type;
    uint32_t padding;
    void *pointer;
} tvm_ffi_value;

/* Header of an object. */
typedef struct tvm_ffi_object {
    uint64_t references;
    int32_t type;
    uint32_t padding;
    void *release;
} tvm_ffi_object;

/* Functions of libtvm_ffi, which the process has loaded. */
void TVMFFIErrorSetRaisedFromCStr(const char *kind, const char *text);
void *TVMFFIEnvGetStream(int32_t device_type, int32_t device);

#endif
