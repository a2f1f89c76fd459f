/* The facts of cuda_abi.h. */
#include <stddef.h>
#include <stdint.h>

#include "abi_found.h"
#include "abi_list.h"
#include "src/driver/cuda_abi.h"

const struct abi_fact abi_ours[] = {ABI_FACTS};
