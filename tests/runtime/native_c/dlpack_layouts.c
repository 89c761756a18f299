/* The structs of `cuts_run.h` are those of DLPack. */
#include <stddef.h>

#include "cuts_run.h"
#include DLPACK_HEADER

#define SAME(ours, theirs) _Static_assert((ours) == (theirs), #ours)

SAME(sizeof(cuts_tensor), sizeof(DLTensor));
SAME(offsetof(cuts_tensor, data), offsetof(DLTensor, data));
SAME(offsetof(cuts_tensor, device), offsetof(DLTensor, device));
SAME(offsetof(cuts_tensor, ndim), offsetof(DLTensor, ndim));
SAME(offsetof(cuts_tensor, dtype), offsetof(DLTensor, dtype));
SAME(offsetof(cuts_tensor, shape), offsetof(DLTensor, shape));
SAME(offsetof(cuts_tensor, strides), offsetof(DLTensor, strides));
SAME(offsetof(cuts_tensor, byte_offset), offsetof(DLTensor, byte_offset));
SAME(offsetof(cuts_device, ordinal), offsetof(DLDevice, device_id));
SAME(offsetof(cuts_dtype, bits), offsetof(DLDataType, bits));
SAME(offsetof(cuts_dtype, lanes), offsetof(DLDataType, lanes));
SAME((int)kDLCPU, 1);
SAME((int)kDLCUDA, 2);
SAME((int)kDLOpenCL, 4);

int main(void) {
    return 0;
}
