/* Checks of a caller's tensors. */
#ifndef CUTS_TENSOR_CHECKS_H
#define CUTS_TENSOR_CHECKS_H

#include "plan_file.h"

/* Returns the word of messages for a role. */
const char *role_name(uint32_t role);

/* Checks that a caller's tensor has the element type and the shape of a plan's, and is dense. */
cuts_status check_tensor(const plan_file *file, const tensor_record *tensor, const cuts_tensor *given);

#endif
