/* The variables of libsymwin-nccl.so. It reads them; symwin-info checks them too. */
#ifndef SYMWIN_NCCL_VARIABLES_H
#define SYMWIN_NCCL_VARIABLES_H

#include <stddef.h>

struct sw_nccl_variable {
    const char *name, *allowed;
    int (*makes_sense)(const char *text);
};

enum { SW_NCCL_VARIABLES = 5 };
extern const struct sw_nccl_variable sw_nccl_variables[SW_NCCL_VARIABLES];

/* Whether it is set to what makes no sense: `text` says so. */
int sw_nccl_variable_is_wrong(const struct sw_nccl_variable *variable, char *text, size_t bytes);

#endif
