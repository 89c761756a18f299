/* Errors of this library: a code to return, a text for the thread that caused it. */
#ifndef CUTS_STATUS_H
#define CUTS_STATUS_H

#include "cuts_run.h"

/* Sets the text of this thread's last error and returns the code. */
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
cuts_status fail(cuts_status status, const char *format, ...);

/* Leaves the calling function with the status of a call that failed. */
#define TRY(call)                               \
    do {                                        \
        cuts_status status_ = (call);           \
        if (status_ != CUTS_OK) return status_; \
    } while (0)

#endif
